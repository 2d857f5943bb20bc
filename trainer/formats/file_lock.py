"""POSIX locks on files that several hosts write. NFS v4 and Lustre with flock support them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time

#: Seconds between two attempts to lock.
_POLL_S = 0.05
_HELD_BY_ANOTHER = (errno.EAGAIN, errno.EACCES)


def lock_within(fd: int, wait_s: float) -> bool:
    """Return True if the lock on `fd` was acquired within `wait_s` seconds; False at once without lock support.

    The lock belongs to the process: closing any other descriptor of the file releases it.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _HELD_BY_ANOTHER or time.monotonic() >= deadline:
                return False
        time.sleep(_POLL_S)


def is_locked(fd: int) -> bool:
    """Return True if another process has the lock on `fd`, or without lock support.

    `fd` may be open for reading only. Closing `fd` releases this process's own locks on the file.
    """
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.lockf(fd, fcntl.LOCK_UN)
    return False


def is_locked_by_another(fd: int, wait_s: float) -> bool:
    """Return True if another process keeps the lock on `fd` for `wait_s` seconds. Otherwise acquire it."""
    if lock_within(fd, wait_s):
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _HELD_BY_ANOTHER
    return False


def open_to_lock(path: str | os.PathLike[str], dir_fd: int | None = None, mode_if_new: int | None = None) -> int:
    """Open a file that only grows, to lock it. Links are not followed, and a FIFO does not block.

    mode_if_new: create the file with this mode if it does not exist. Raises OSError.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            return os.open(path, flags, dir_fd=dir_fd)
        except FileNotFoundError:
            if mode_if_new is None:
                raise
        with contextlib.suppress(FileExistsError):  # another process has just created it
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode_if_new, dir_fd=dir_fd)
            os.fchmod(fd, mode_if_new)
            return fd


def refuse_other_than_a_plain_file(fd: int, path: str | os.PathLike[str]) -> None:
    """Raise OSError if the opened file is not a regular file with one name."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    if found.st_nlink != 1:
        what = (
            "removed while it was being opened" if found.st_nlink == 0 else f"has {found.st_nlink} names instead of one"
        )
        raise OSError(errno.EINVAL, what, os.fspath(path))
