"""The arithmetic of a run."""
