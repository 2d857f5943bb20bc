"""A run's state on disk: what is written there, and the one way to open and write it."""
