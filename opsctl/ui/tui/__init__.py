"""`status --watch`: a run, or all of them, on one screen that stays; acting from there by the commands themselves."""
