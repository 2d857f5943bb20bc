"""Whether a log is still the one that was read, by contents: its first bytes, and the last ones that were read."""

from __future__ import annotations

import hashlib
import os

#: So much of a log's beginning, and of what was read last, tells whether it is still the same.
_TOLD_BY_BYTES = 4096


def digests(fd: int, read_bytes: int) -> tuple[str, str]:
    """Of the first bytes of what was read, and of the last. Raises OSError."""
    return (
        _digest(fd, 0, min(_TOLD_BY_BYTES, read_bytes)),
        _digest(fd, max(0, read_bytes - _TOLD_BY_BYTES), read_bytes),
    )


def is_same(fd: int, read_bytes: int, known: tuple[str, str]) -> bool:
    """Whether what is open now begins with what was read. Raises OSError."""
    return read_bytes <= os.fstat(fd).st_size and digests(fd, read_bytes) == known


def _digest(fd: int, start: int, end: int) -> str:
    return hashlib.blake2b(os.pread(fd, end - start, start), digest_size=16).hexdigest()
