"""Putting a copy in the place of another's file that the group cannot work with: it is the caller's then, and open.

Where the folder's own permissions allow it, and only for files that lie still. What a run's records say by whose file
they are, what is written as a training goes on, and a checkpoint that is being saved stay as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from fnmatch import fnmatchcase
from pathlib import Path

from opsctl.core.files.state_files import write_all
from opsctl.run.permissions.rule import SECOND_NAME, Lack
from trainer.formats.file_lock import is_locked

#: A file that was written within this time may be written still.
STILL_FOR_S = 3600.0
_PIECE_BYTES = 1 << 20
_COPY = ".opsctl-perms."
#: Parts of a place: whose file it is says something, or somebody writes it or puts another in its place as it goes on.
_LEFT_ALONE = (
    *(".opsctl", "logs", "tensorboard", "codecarbon", "report"),
    *(".tmp-*", "kill-switch", "latest*", "*.jsonl", ".*.lock"),
)
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def replace_file(
    within: int, name: str, place: str, seen: os.stat_result, gid: int, found: Lack, only_counts: bool
) -> str:
    """Put a copy of `name` in its place, the caller's and the group's; why not, in a clause, or empty.

    Its times and its content stay. only_counts: only say whether it would be tried. Raises OSError.
    """
    why = _why_not(place, seen)
    if why or only_counts:
        return why
    source = os.open(name, os.O_RDONLY | _FILE, dir_fd=within)
    try:
        before = os.fstat(source)
        if not os.path.samestat(before, seen):
            return "something else took its place meanwhile"
        if is_locked(source):
            return "somebody has it locked"
        copy = f"{_COPY}{secrets.token_hex(8)}"
        target = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=within)
        try:
            _copy(source, target)
            held = Path(f"/proc/self/fd/{target}")
            if os.fstat(target).st_gid != gid:
                os.chown(held, -1, gid)
            held.chmod(found.mended(before.st_mode) & 0o777)
            os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
            os.fsync(target)
            now = os.stat(name, dir_fd=within, follow_symlinks=False)
            if _still(now) != _still(before):
                return "it was changed meanwhile"
            os.rename(copy, name, src_dir_fd=within, dst_dir_fd=within)
        finally:
            os.close(target)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(copy, dir_fd=within)
    finally:
        os.close(source)
    os.fsync(within)
    return ""


def is_left_over(name: str) -> bool:
    """Whether that is a copy that was not finished."""
    return name.startswith(_COPY)


def remove_left_over(within: int, name: str) -> None:
    """Remove what a process that was killed has left; one that somebody is at stays."""
    with contextlib.suppress(OSError):
        found = os.stat(name, dir_fd=within, follow_symlinks=False)
        if found.st_uid == os.geteuid() and time.time() - found.st_ctime > STILL_FOR_S:
            os.unlink(name, dir_fd=within)


def _why_not(place: str, seen: os.stat_result) -> str:
    for part in place.split("/"):
        for pattern in _LEFT_ALONE:
            if fnmatchcase(part, pattern):
                return f"what is called {pattern} is never replaced"
    if seen.st_nlink > 1:
        return SECOND_NAME
    if time.time() - max(seen.st_mtime, seen.st_ctime) < STILL_FOR_S:
        return "it was changed within the last hour"
    return ""


def _still(found: os.stat_result) -> tuple[int, ...]:
    """What would be another if it had been written or replaced."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_nlink)


def _copy(source: int, target: int) -> None:
    """Copy all of it and read it back from the disk. Raises OSError where that is not the same."""
    read = hashlib.blake2b()
    while piece := os.read(source, _PIECE_BYTES):
        read.update(piece)
        write_all(target, piece)
    os.fsync(target)
    os.posix_fadvise(target, 0, 0, os.POSIX_FADV_DONTNEED)  # so that it is the disk that is read
    os.lseek(target, 0, os.SEEK_SET)
    back = hashlib.blake2b()
    while piece := os.read(target, _PIECE_BYTES):
        back.update(piece)
    if read.digest() != back.digest():
        raise OSError(0, "the copy is not what was read")
