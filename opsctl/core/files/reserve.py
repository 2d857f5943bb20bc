"""Files kept ready for a disk that is full, or a quota: written over where they lie, and renamed to what is needed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from opsctl.core.files.state_files import FULL_DISK, fsync_folder, remove, write_all, write_atomically
from opsctl.core.files.trusted import opened_file, opened_folder
from trainer.formats.json_text import json_line

T = TypeVar("T")


def write_reserve(root: Path, path: Path, value: Any, size_bytes: int) -> None:
    """Keep a file of that size ready. `value`: what it says until `take_reserve` writes over it. Raises OSError."""
    try:
        with opened_folder(root, path.parent) as (folder, _):
            found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode) and found.st_size == size_bytes:
            return
    except FileNotFoundError:
        pass
    write_atomically(root, path, _padded(value, size_bytes))


def take_reserve(root: Path, reserve: Path, path: Path, value: Any) -> None:
    """Rename `reserve` to `path` and let it contain `value`; needs no room. Raises OSError."""
    # A file system that copies what it writes has no room for this either: then it says what it said before.
    with opened_file(root, reserve, os.O_WRONLY) as fd, contextlib.suppress(OSError):
        os.utime(fd)
        _write_over(fd, value)
    with opened_folder(root, reserve.parent) as (source, _), opened_folder(root, path.parent) as (target, _):
        os.rename(reserve.name, path.name, src_dir_fd=source, dst_dir_fd=target)
    fsync_folder(root, path.parent)


def keep_ballast(root: Path, path: Path, size_bytes: int) -> None:
    """Keep an incompressible file to remove when the disk is full, if twice its size is free. Raises OSError."""
    with opened_folder(root, path.parent) as (folder, _):
        with contextlib.suppress(FileNotFoundError):
            os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            return
        found = os.fstatvfs(folder)
    if found.f_bavail * found.f_frsize < 2 * size_bytes:
        return
    write_atomically(root, path, os.urandom(size_bytes))


def with_ballast(root: Path, ballast: Path, write: Callable[[], T]) -> T:
    """Call `write`; if the disk is full, remove `ballast` and call it again. Raises as `write`."""
    try:
        return write()
    except OSError as error:
        if error.errno not in FULL_DISK or not remove(root, ballast):
            raise
        return write()


def _write_over(fd: int, value: Any) -> None:
    """Let the reserve that is open as `fd` contain `value`, in place. Raises OSError, also where it does not fit."""
    data = _padded(value, os.fstat(fd).st_size)
    if not data:
        raise OSError(errno.ENOSPC, "the reserve is full")
    os.lseek(fd, 0, os.SEEK_SET)
    write_all(fd, data)
    os.fsync(fd)


def _padded(value: Any, size_bytes: int) -> bytes:
    """JSON of `value` with blanks up to the size; nothing where it would be longer."""
    data = json_line(value).encode()
    return data.ljust(size_bytes - 1) + b"\n" if len(data) < size_bytes else b""
