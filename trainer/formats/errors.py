"""What can be wrong with training data or a checkpoint: one line that says what was found, where, and what to do."""

from __future__ import annotations


class DataError(Exception):
    """The data, or what the options ask of it, cannot be used. Its text is one line for who started the run."""


class SampleError(DataError):
    """A sample cannot be used. Only the ranks that read it know; the others are somewhere in the same step."""


class CheckpointError(Exception):
    """A checkpoint that cannot be written or loaded; the text is one line that names the file and says what to do."""
