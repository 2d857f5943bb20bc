"""Writing small state files so that a crash at any moment leaves either the old or the new one, never half."""

from __future__ import annotations

import contextlib
import os
import socket
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


def fsync(path: Path) -> None:
    """Make a file's data, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
