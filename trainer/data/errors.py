"""What can be wrong with training data: one line that says what was found, where, and what to do."""

from __future__ import annotations


class DataError(Exception):
    """The data, or what the options ask of it, cannot be used. Its text is one line for who started the run."""


class SampleError(DataError):
    """A sample cannot be used. Only the ranks that read it know; the others are somewhere in the same step."""
