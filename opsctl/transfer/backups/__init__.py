"""Copies of a run's checkpoints and records somewhere else, proven there, and the way back."""
