"""Errors in training data and checkpoints. Each text is one line: the problem, the place, and what to type."""

from __future__ import annotations


class DataError(Exception):
    """The data cannot be used, or not with these options. The text is one line for the user."""


class SampleError(DataError):
    """A sample cannot be used. Only the ranks that read it raise this; the others are in the middle of a step."""


class CheckpointError(Exception):
    """A checkpoint cannot be written or loaded. The text is one line with the file and what to type."""
