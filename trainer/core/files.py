"""Small state files: written so that a crash at any moment leaves the old or the new one, read without ever hanging."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
from pathlib import Path

_NEVER = 0o002 | stat.S_ISVTX  # never by other users, whatever the folder above allows


def make_folder(folder: Path) -> None:
    """Make a folder with what is missing on the way to it, each as open as the one that it is made in."""
    missing, there = [], folder
    while not there.exists():
        missing.append(there)
        there = there.parent
    for one in reversed(missing):
        with contextlib.suppress(FileExistsError):  # made by another process at this moment
            one.mkdir()
            be_as_open_as_its_folder(one)
    if not folder.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))


def be_as_open_as_its_folder(path: Path, runnable: bool = False, closed: bool = False) -> None:
    """Give a new file or folder the same access as the folder that it is in.

    If its group is not the folder's, that group gets the rights of all users. A file of another user stays as it is,
    and so does the target of a link, or a file with a second name. runnable: the file is a program. closed: no other
    user creates anything in the folder.
    """
    above = path.parent.stat()
    # What is looked at is what is changed: in a shared folder a name may mean something else a moment later.
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        own = os.fstat(fd)
        mode = _mode_in(above, own, runnable) & ~(0o020 if closed else 0)
        is_plain = stat.S_ISDIR(own.st_mode) or (stat.S_ISREG(own.st_mode) and own.st_nlink == 1)
        if is_plain and mode != stat.S_IMODE(own.st_mode):
            with contextlib.suppress(PermissionError):
                Path(f"/proc/self/fd/{fd}").chmod(mode)
    finally:
        os.close(fd)


def _mode_in(above: os.stat_result, own: os.stat_result, runnable: bool) -> int:
    """Return the mode of a new entry in the folder `above`."""
    mode = stat.S_IMODE(above.st_mode) & ~_NEVER
    if own.st_gid != above.st_gid:
        mode = mode & ~(stat.S_ISGID | 0o070) | (mode & 0o007) << 3
    if not stat.S_ISDIR(own.st_mode):
        mode = mode & 0o775 if runnable else mode & 0o664
    return mode


def create_file(path: Path, runnable: bool = False) -> int:
    """Return a descriptor of a new file, for writing, as open as its folder. Raises OSError, also if the name exists.

    Users who share a folder can put a link there, to a file that only we may write.
    """
    above = path.parent.stat()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(PermissionError):  # a file system without modes
        os.fchmod(fd, _mode_in(above, os.fstat(fd), runnable))
    return fd


def write_atomically(path: Path, text: str, runnable: bool = False) -> None:
    """Write `text` beside `path`, fsync, rename over it, fsync the folder. On any error the old file stands.

    It is as open as its folder. runnable: it is a program.
    """
    beside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    fd = create_file(beside, runnable)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
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
    """Return a regular file's contents. Raises OSError, also for longer ones and other kinds (a FIFO would hang)."""
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


class HeldFolder:
    """A folder that is kept open, so that moving it on its file system changes nothing for its holder.

    A removed folder is searched by its path again. `path` is as the user gave it, for messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._absolute = path.absolute()  # whatever becomes of the working directory
        self._fd: int | None = None

    def descriptor(self) -> int:
        """Return the folder's descriptor, for calls with a `dir_fd`. Raises OSError if there is none."""
        if self._fd is not None and not _is_there(self._fd):
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None
        if self._fd is None:
            self._fd = os.open(self._absolute, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._fd

    def place(self) -> Path:
        """Return a path that leads to the folder's present place, in this process. Raises OSError."""
        return Path(f"/proc/self/fd/{self.descriptor()}")

    def has(self, name: str) -> bool:
        """Return whether this name exists, in the folder's present place or its former one: a dangling link too.

        A file system that does not answer properly counts as "not seen".
        """
        with contextlib.suppress(OSError):
            os.stat(name, dir_fd=self.descriptor(), follow_symlinks=False)
            return True
        return os.path.lexists(self._absolute / name)

    def said(self, text: str) -> str:
        """`text` with the folder's path as the user gave it, where it has `place()`."""
        return text if self._fd is None else re.sub(rf"/proc/self/fd/{self._fd}(?!\d)", lambda _: str(self.path), text)


def _is_there(fd: int) -> bool:
    """Return False for a removed folder, and for one that its file server no longer knows."""
    try:
        return os.fstat(fd).st_nlink > 0
    except OSError:
        return False
