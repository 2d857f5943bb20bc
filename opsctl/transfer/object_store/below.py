"""Files below a folder that is held open, reached step by step through no link.

Checksums prove copies, so their owners are not judged: `core.files.trusted` does that for state.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from opsctl.core.files.trusted import step_into


@contextlib.contextmanager
def folder_of(root: int, name: str, make: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (the folder that the file `name` below `root` is in, the file's own name there). Raises OSError.

    make: missing folders on the way are made, as open as the folder that they are in.
    """
    *steps, last = name.split("/")
    folder = os.dup(root)
    try:
        for step in steps:
            within, folder = folder, step_into(folder, step, Path(name), make)
            os.close(within)
        yield folder, last
    finally:
        os.close(folder)


def open_below(root: int, name: str) -> int:
    """Return a descriptor for reading a plain file. Raises OSError, also where it is a link, a folder or a pipe."""
    with folder_of(root, name) as (folder, last):
        fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(0, "no regular file", name)
