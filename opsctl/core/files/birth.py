"""Which folder a folder is: its inode, which a later one may get once it is removed, and when it was made."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

#: Of Linux's statx(2): what is asked for, and where in its answer of 256 bytes that stands.
_AT_FDCWD, _BORN = -100, 0x800
_ANSWER_BYTES, _MASK, _BORN_AT = 256, struct.Struct("=I"), (struct.Struct("=qI"), 80)


@dataclass(frozen=True)
class Mark:
    """What tells a folder from others on its file system, and stays when it is moved on it."""

    inode: int
    born_ns: int | None = None  # None: this file system, or this C library, does not say

    def may_be(self, inode: int | None, born_ns: int | None) -> bool:
        """Whether it may be the folder with these: its number is the same, and no time of birth says otherwise."""
        return self.inode == inode and (self.born_ns is None or born_ns is None or self.born_ns == born_ns)


def mark_of_folder(folder: Path) -> Mark:
    """The folder's. Raises OSError."""
    return Mark(folder.stat().st_ino, _born_ns(folder))


def _born_ns(folder: Path) -> int | None:
    """When it was made, nanoseconds since 1970. Python's own stat does not tell before 3.15."""
    import ctypes  # hardly a command needs it

    answer = ctypes.create_string_buffer(_ANSWER_BYTES)
    try:
        failed = ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(folder), 0, ctypes.c_uint(_BORN), answer)
    except (AttributeError, OSError):  # glibc before 2.28
        return None
    if failed or not _MASK.unpack_from(answer)[0] & _BORN:
        return None
    whole, at = _BORN_AT
    seconds, nanoseconds = whole.unpack_from(answer, at)
    return seconds * 10**9 + nanoseconds or None
