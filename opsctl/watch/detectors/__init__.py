"""One check a module: a pure function of a snapshot and the check's settings."""
