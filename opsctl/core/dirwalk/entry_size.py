"""What an entry counts for: its share of the disk, and since when nobody has read or written it."""

from __future__ import annotations

import os
import stat

_BLOCK_BYTES = 512  # what st_blocks counts


def share_of_bytes(seen: os.stat_result) -> int:
    """What it takes on the disk; of a file with several names its share, so that all of them together are the file."""
    if seen.st_nlink > 1 and stat.S_ISREG(seen.st_mode):
        return seen.st_blocks * _BLOCK_BYTES // seen.st_nlink
    return seen.st_blocks * _BLOCK_BYTES


def touched_at_s(seen: os.stat_result) -> float:
    """When it was read or written last, as far as the file system keeps count."""
    return max(seen.st_atime, seen.st_mtime)
