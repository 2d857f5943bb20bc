"""What can be wrong with a checkpoint."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint that cannot be written or loaded; the text is one line that names the file and says what to do."""
