"""Small state files: written so that a crash at any moment leaves the old or the new one, read without ever hanging."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

SHARED_FILE_MODE = 0o664
SHARED_PROGRAM_MODE = 0o775
SHARED_FOLDER_MODE = 0o2775


def make_shared_folder(folder: Path) -> None:
    """A new folder is for the whole group: the next one to start this training may be somebody else."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):
            folder.chmod(SHARED_FOLDER_MODE)


def write_atomically(path: Path, text: str) -> None:
    """Write `text` beside `path`, fsync, rename over it, fsync the folder. On any error the old file stands."""
    beside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        with beside.open("w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), SHARED_FILE_MODE)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    fsync(path.parent)


def read_plain(path: Path, largest_bytes: int) -> bytes:
    """A regular file's contents. Raises OSError, also of what is none (reading a FIFO would hang) or is longer."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        data = file.read(largest_bytes + 1)
    if len(data) > largest_bytes:
        raise OSError(errno.EFBIG, f"more than {largest_bytes} bytes", str(path))
    return data


def fsync(path: Path) -> None:
    """Make a file's data, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
