"""Sources of documents: files and folders of many kinds, split into pieces that are read independently."""
