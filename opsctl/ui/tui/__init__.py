"""`status --watch`: a run, or all of them, on one screen that stays."""
