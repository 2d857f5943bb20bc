"""Checkpoints in other programs' formats, and back."""
