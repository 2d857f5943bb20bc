"""Data files, their notes, and the checks of a run's data."""
