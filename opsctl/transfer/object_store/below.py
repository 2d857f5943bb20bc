"""Files below a folder that is held open, reached step by step through no link, and made as open as where they are."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def folder_of(root: int, name: str, make: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (the folder that the file `name` below `root` is in, the file's own name there). Raises OSError.

    make: what is missing on the way is made.
    """
    *steps, last = name.split("/")
    folder = os.open(".", _FOLDER, dir_fd=root)
    try:
        for step in steps:
            if make:
                _make_folder(folder, step)
            below = os.open(step, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder, last
    except OSError as error:
        if error.filename is not None:
            error.filename = name
        raise
    finally:
        os.close(folder)


def open_below(root: int, name: str) -> int:
    """Return a descriptor for reading a plain file. Raises OSError, also where it is a link, a folder or a pipe."""
    with folder_of(root, name) as (folder, last):
        return open_plain(folder, last)


def open_plain(folder: int, last: str) -> int:
    """`open_below` in the folder itself."""
    fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(0, "no regular file", last)


def create_below(folder: int, last: str) -> int:
    """Return a descriptor for writing and reading a file that was not there, as open as its folder."""
    fd = os.open(last, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    _open_as(folder, fd, 0o664)
    return fd


def _make_folder(above: int, step: str) -> None:
    try:
        os.mkdir(step, 0o700, dir_fd=above)
    except FileExistsError:
        return
    fd = os.open(step, _FOLDER, dir_fd=above)
    try:
        _open_as(above, fd, 0o2775)
    finally:
        os.close(fd)


def _open_as(above: int, fd: int, most: int) -> None:
    """Let who may use the folder `above` use what was made in it; no other group gets its group's rights."""
    model = os.fstat(above)
    mode = stat.S_IMODE(model.st_mode) & most
    with contextlib.suppress(PermissionError):
        if os.fstat(fd).st_gid != model.st_gid:
            os.fchown(fd, -1, model.st_gid)
    if os.fstat(fd).st_gid != model.st_gid:
        mode &= ~0o2070
    with contextlib.suppress(PermissionError):
        os.fchmod(fd, mode)
