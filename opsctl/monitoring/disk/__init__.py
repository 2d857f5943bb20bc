"""Usage of folders and its growth, by walks that continue from call to call, and files that are about to be removed."""
