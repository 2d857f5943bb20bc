"""The kernel's lock on a file that several hosts write: POSIX, which NFS v4 and Lustre with flock honour."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time

#: How often a lock is asked for while somebody else has it.
_POLL_S = 0.05
_HELD_BY_ANOTHER = (errno.EAGAIN, errno.EACCES)


def lock_within(fd: int, wait_s: float) -> bool:
    """Whether the lock on `fd` could be had within `wait_s` seconds. Where there are no locks that is known at once.

    It is the process's: closing any other descriptor of the file gives it up.
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
    """Whether another process has the lock on `fd`, which may be open for reading only. Where there are no locks: yes.

    Closing `fd` gives up what this process itself has on the file.
    """
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.lockf(fd, fcntl.LOCK_UN)
    return False


def is_locked_by_another(fd: int, wait_s: float) -> bool:
    """Whether another process keeps its lock on `fd` for `wait_s` seconds. Else it is ours, where there are locks."""
    if lock_within(fd, wait_s):
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _HELD_BY_ANOTHER
    return False


def open_to_lock(path: str | os.PathLike[str], dir_fd: int | None = None, mode_if_new: int | None = None) -> int:
    """A descriptor of a file that only grows, which may be locked; links are not followed, a FIFO hangs nobody.

    mode_if_new: it is made with this mode where there is none. Raises OSError.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            return os.open(path, flags, dir_fd=dir_fd)
        except FileNotFoundError:
            if mode_if_new is None:
                raise
        with contextlib.suppress(FileExistsError):  # another one has just made it
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode_if_new, dir_fd=dir_fd)
            os.fchmod(fd, mode_if_new)
            return fd


def refuse_other_than_a_plain_file(fd: int, path: str | os.PathLike[str]) -> None:
    """Raise OSError where what was opened is no regular file with one name."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    if found.st_nlink != 1:
        what = (
            "removed while it was being opened" if found.st_nlink == 0 else f"has {found.st_nlink} names instead of one"
        )
        raise OSError(errno.EINVAL, what, os.fspath(path))
