"""Pure functions from a run to script text."""
