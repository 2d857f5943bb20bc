"""The kernel's lock on a file that several hosts write: POSIX, which NFS v4 and Lustre with flock honour."""

from __future__ import annotations

import errno
import fcntl
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
