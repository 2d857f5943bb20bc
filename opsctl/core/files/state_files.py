"""Open and write the state files of a run and of this account. All state files go through this module.

Every function gets the root of the state, a run's output folder or one of the account's, and opens files under it as
`trusted` does. A file is replaced as a whole or not at all, so a crash leaves either the old or the new one. A `.jsonl`
file grows by whole lines. New files are as open as their folder. Files that users may edit, or that a crash may cut,
are read tolerantly: what does not fit is skipped.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError
from opsctl.core.files.trusted import create_file, open_file, opened_file, opened_folder, readable
from trainer.formats.file_lock import lock_within
from trainer.formats.json_text import json_file_text, json_line
from trainer.formats.tolerant import decode

T = TypeVar("T")


class PartlyWritten(OSError):
    """A file took only the beginning of what was to be appended, `written_bytes` of it."""

    def __init__(self, why: OSError, path: Path, written_bytes: int) -> None:
        super().__init__(why.errno, why.strerror, str(path))
        self.written_bytes = written_bytes


#: What a disk that takes no more says, by errno.
FULL_DISK = {errno.ENOSPC: "no space left", errno.EDQUOT: "quota exceeded"}
#: A process that hangs with the lock on a record must not stop the others: after this they append all the same.
APPEND_LOCK_WAIT_S = 5.0
#: The same of the training log: a line late is worse than two that run together.
LOG_LOCK_WAIT_S = 0.2
#: More than any state file holds, and more than any that grows by lines: what is larger is not ours, and is not read.
LARGEST_BYTES = 64 << 20
LARGEST_LINES_BYTES = 1 << 30


def read_text(root: Path, path: Path) -> str | None:
    """All of the file; None where there is none. Raises OSError where it cannot be read: that is not the same."""
    try:
        return _read(root, path).decode(errors="replace")
    except FileNotFoundError:
        return None


def read_state(root: Path, path: Path, kind: type[T], largest_bytes: int = LARGEST_BYTES) -> T | None:
    """Return the JSON file as a `kind`, as far as it fits; None if there is no file, or it cannot be read."""
    try:
        return decode(_read(root, path, largest_bytes), kind)
    except OSError:
        return None


def read_whole(root: Path, path: Path, kind: type[T], remedy: str, error: type[OpsctlError] = OpsctlError) -> T | None:
    """Return the JSON file as a `kind`; None without one. Raises `error`, ending with `remedy`, if it is damaged."""
    try:
        return parsed(_read(root, path), kind)
    except FileNotFoundError:
        return None
    except OSError as found:
        raise error(f"cannot read {found.filename or path}: {found.strerror or found}; {remedy}") from None
    except ValueError as found:
        raise error(f"cannot read {path}: {found}; {remedy}") from None


def parsed(text: str | bytes, kind: type[T]) -> T:
    """JSON text as a `kind`, all of it. Raises ValueError, which says what is wrong."""
    try:
        return msgspec.convert(json.loads(text), kind)
    except RecursionError:
        raise ValueError("nested too deep") from None


def read_lines(root: Path, path: Path, kind: type[T]) -> list[T]:
    """Return the lines of a `.jsonl` file that fit `kind`; empty without a file. Raises OSError if unreadable."""
    try:
        return _decoded(_read(root, path, LARGEST_LINES_BYTES).split(b"\n"), kind)
    except FileNotFoundError:
        return []


def read_last_lines(root: Path, path: Path, kind: type[T], most_bytes: int) -> list[T]:
    """`read_lines` of a file's newest `most_bytes`, for one that grows for years. Raises OSError."""
    try:
        with opened_file(root, path) as fd:
            begin = max(0, os.fstat(fd).st_size - most_bytes)
            data = os.pread(fd, most_bytes, begin)
    except FileNotFoundError:
        return []
    return _decoded(data.split(b"\n")[1 if begin else 0 :], kind)


def _decoded(lines: Iterable[bytes], kind: type[T]) -> list[T]:
    return [found for line in lines if line and (found := decode(line, kind)) is not None]


def _read(root: Path, path: Path, largest_bytes: int = LARGEST_BYTES) -> bytes:
    """Every reading of a whole state file opens it here."""
    with os.fdopen(open_file(root, path), "rb") as file:
        data = file.read(largest_bytes + 1)
    if len(data) > largest_bytes:
        raise OSError(errno.EFBIG, f"more than {largest_bytes} bytes", str(path))
    return data


def make_folder(root: Path, folder: Path) -> None:
    """Make `folder` and missing ones above it, each as open as its parent; `root` has to exist."""
    with opened_folder(root, folder, make=True):
        pass


def write_atomically(root: Path, path: Path, data: str | bytes, mode: int | None = None) -> None:
    """Write, fsync and rename over `path`; an error leaves the old file. mode: None, as open as the folder."""
    beside = path.with_name(f".{path.name}.{_own_name()}.tmp")
    with opened_folder(root, path.parent) as (folder, _):
        try:
            fd = create_file(folder, beside, mode)
            try:
                write_all(fd, data.encode() if isinstance(data, str) else data)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(beside.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside.name, dir_fd=folder)
            raise
        fsync_open_folder(folder)


def replace_named_file(path: Path, text: str, mode: int | None = None) -> None:
    """Replace atomically a file that the user named, in any user's folder. Raises OSError, which names `path`."""
    beside = path.with_name(f".{path.name}.{_own_name()}.tmp")
    try:
        with beside.open("x", encoding="utf-8") as file:
            file.write(text)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _own_name() -> str:
    """Return a suffix for temporary files that no other writer uses at the same time."""
    return f"{socket.gethostname()}.{os.getpid()}.{os.urandom(4).hex()}"


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, however few bytes the file system takes at a time. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_state(root: Path, path: Path, value: Any, mode: int | None = None) -> None:
    """`write_atomically` of a struct, or anything made of such, as indented JSON."""
    write_atomically(root, path, json_file_text(value), mode)


def create_state(root: Path, path: Path, value: Any) -> bool:
    """Create the file; False where anything exists. It counts even if a full disk takes none of it. Raises OSError."""
    with opened_folder(root, path.parent) as (folder, _):
        try:
            fd = create_file(folder, path)
        except FileExistsError:
            return False
        try:
            with contextlib.suppress(OSError):
                write_all(fd, json_line(value).encode() + b"\n")
                os.fsync(fd)
        finally:
            os.close(fd)
        fsync_open_folder(folder)
    return True


def touch_new(path: Path) -> bool:
    """Create an empty file without judging its folder; False where anything exists."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o660))
    except FileExistsError:
        return False
    return True


def remove(root: Path, path: Path) -> bool:
    """Remove a file, or a link itself. Returns False where there is none. Raises OSError."""
    try:
        with opened_folder(root, path.parent) as (folder, _):
            os.unlink(path.name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def write_back(root: Path, path: Path, text: str | None) -> None:
    """Let the file be as `read_text` found it; None: not there."""
    if text is None:
        remove(root, path)
    else:
        write_atomically(root, path, text)


@contextlib.contextmanager
def room_kept(root: Path, folder: Path, size_bytes: int) -> Iterator[None]:
    """Hold a little of the disk for what must not fail to be written for want of it right afterwards."""
    room = folder / f".room-{_own_name()}"
    try:
        with opened_folder(root, folder) as (within, _):
            fd = create_file(within, room)
        try:
            write_all(fd, b"\0" * size_bytes)
        finally:
            os.close(fd)
        yield
    finally:
        with contextlib.suppress(OSError):
            remove(root, room)


def fsync_folder(root: Path, folder: Path) -> None:
    """Make renames inside `folder` durable."""
    with opened_folder(root, folder) as (fd, _):
        fsync_open_folder(fd)


def fsync_open_folder(folder: int) -> None:
    """`fsync_folder` of one that is open."""
    with readable(folder) as fd:
        os.fsync(fd)


def fsync_named_folder(folder: Path) -> None:
    """Make renames durable inside a folder that the user named, which may belong to any user. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def append_state(root: Path, path: Path, value: Any) -> None:
    """Append a struct, or anything made of such, as one line of JSON."""
    append_bytes(root, path, json_line(value).encode() + b"\n")


def append_bytes(root: Path, path: Path, data: bytes, wait_s: float = APPEND_LOCK_WAIT_S) -> bool:
    """Append whole lines under the file's lock, so that lines of several writers never split each other.

    Two NFS clients that append lose each other's bytes, with O_APPEND too, unless each opens the file again under the
    lock: only this makes a client ask for the end of the file. Starts on a new line if a crashed writer left half a
    line. Waits at most `wait_s` seconds for the lock, and returns whether it was acquired. Raises PartlyWritten if a
    disk takes only the beginning, OSError if nothing was written.
    """
    with opened_file(root, path, os.O_RDWR | os.O_CREAT) as held:
        was_had = lock_within(held, wait_s)
        # Closing it gives up the lock: the kernel drops a process's locks on a file at the first close.
        with opened_file(root, path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as fd:
            end = os.fstat(fd).st_size
            if end and os.pread(fd, 1, end - 1) != b"\n":
                write_all(fd, b"\n")
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(fd, view) :]
            except OSError as error:
                written_bytes = len(data) - len(view)
                raise PartlyWritten(error, path, written_bytes) if written_bytes else error from None
    return was_had


@contextlib.contextmanager
def locked(root: Path, path: Path, wait_s: float, what: str) -> Iterator[None]:
    """Hold the kernel's lock on `path`, which dies with its holder and is closed to others. Raises OpsctlError naming
    the holder after `wait_s` seconds.
    """
    with opened_file(root, path, os.O_RDWR | os.O_CREAT) as fd:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & 0o007:
            with contextlib.suppress(PermissionError):
                os.fchmod(fd, mode & 0o770)
        if not lock_within(fd, wait_s):
            holder = os.pread(fd, 200, 0).decode(errors="replace").partition("\n")[0].strip() or "another process"
            raise OpsctlError(f"cannot {what}: {holder} holds {path}; try again when it is done")
        with contextlib.suppress(OSError):  # a full disk may not take a name; the lock is the kernel's
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{account_and_host()} pid {os.getpid()}\n".encode(), 0)
        yield
