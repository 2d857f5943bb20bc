"""Pure functions from (run, revision) to script text."""
