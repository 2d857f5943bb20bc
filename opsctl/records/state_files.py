"""The one way to open and write a run's state, and what this account remembers, on disk.

A file is replaced whole or not at all, so that a crash at any moment leaves either the old or the new one; a `.jsonl`
file grows by whole lines. What anybody may edit or a crash may cut is read tolerantly: what does not fit is passed
over.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from opsctl.account import account_and_host
from opsctl.errors import OpsctlError
from trainer.formats.json_text import json_file_text, json_line
from trainer.formats.tolerant import decode

T = TypeVar("T")

SHARED_FILE_MODE = 0o664
SHARED_PROGRAM_MODE = 0o775
SHARED_FOLDER_MODE = 0o2775
#: What a disk that takes no more says, by errno.
FULL_DISK = {errno.ENOSPC: "no space left", errno.EDQUOT: "quota exceeded"}
#: A writer that hangs with the lock on a log must not stop the others: after this they append all the same.
APPEND_LOCK_WAIT_S = 5.0
#: More than any state file holds, and more than any that grows by lines: what is larger is not ours, and is not read.
LARGEST_BYTES = 64 << 20
LARGEST_LINES_BYTES = 1 << 30


def read_text(path: Path) -> str | None:
    """All of the file; None where there is none. Raises OSError where it cannot be read: that is not the same."""
    try:
        return _read(path).decode(errors="replace")
    except FileNotFoundError:
        return None


def read_state(path: Path, kind: type[T], largest_bytes: int = LARGEST_BYTES) -> T | None:
    """The JSON file as a `kind`, as far as it fits; None where there is no file, or nothing in it can be read."""
    try:
        return decode(_read(path, largest_bytes), kind)
    except OSError:
        return None


def read_whole(path: Path, kind: type[T], remedy: str, error: type[OpsctlError] = OpsctlError) -> T | None:
    """The JSON file as a `kind`, all of it; None where there is no file.

    Raises `error`, which names the file, says what is wrong with it, and ends with `remedy`.
    """
    try:
        return msgspec.convert(json.loads(_read(path)), kind)
    except FileNotFoundError:
        return None
    except OSError as found:
        raise error(f"cannot read {path}: {found.strerror or found}; {remedy}") from None
    except (ValueError, RecursionError) as found:
        raise error(f"cannot read {path}: {found}; {remedy}") from None


def read_needed(path: Path, kind: type[T], remedy: str) -> T:
    """`read_whole` of a file that has to be there: without one, OpsctlError as well."""
    found = read_whole(path, kind, remedy)
    if found is None:
        raise OpsctlError(f"cannot read {path}: there is no such file; {remedy}")
    return found


def read_lines(path: Path, kind: type[T]) -> list[T]:
    """The lines of a `.jsonl` file that are a `kind`, each as far as it fits; empty where there is no file.

    Raises OSError where it cannot be read: lines that nobody can see must not pass for no lines.
    """
    try:
        lines = _read(path, LARGEST_LINES_BYTES).split(b"\n")
    except FileNotFoundError:
        return []
    return [found for line in lines if line and (found := decode(line, kind)) is not None]


def _read(path: Path, largest_bytes: int = LARGEST_BYTES) -> bytes:
    """Every reading of state opens its file here."""
    with path.open("rb") as file:
        data = file.read(largest_bytes + 1)
    if len(data) > largest_bytes:
        raise OSError(errno.EFBIG, f"more than {largest_bytes} bytes", str(path))
    return data


def make_shared_folder(path: Path) -> None:
    """Create `path` and its missing parents group-writable and setgid, whatever the caller's umask.

    Existing ones stay as they are.
    """
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(SHARED_FOLDER_MODE)


def write_atomically(path: Path, data: str | bytes, mode: int = SHARED_FILE_MODE) -> None:
    """Write `data` beside `path`, fsync, rename over it, fsync the folder.

    On any error the old file stands and nothing is left behind.
    """
    with _written_beside(path, data.encode() if isinstance(data, str) else data, mode) as beside:
        beside.replace(path)
    fsync_folder(path.parent)


@contextlib.contextmanager
def _written_beside(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """A new file of its own beside `path`, whole and durable; gone afterwards unless it was renamed."""
    beside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            os.fchmod(fd, mode)
            _write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        yield beside
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_state(path: Path, value: Any, mode: int = SHARED_FILE_MODE) -> None:
    """`write_atomically` of a struct, or anything made of such, as indented JSON."""
    write_atomically(path, json_file_text(value), mode)


def create_state(path: Path, value: Any, mode: int = SHARED_FILE_MODE) -> bool:
    """`write_state` where nothing is yet, whole at once. Returns False, and changes nothing, where something is.

    Raises OSError when it cannot be made.
    """
    with _written_beside(path, json_line(value).encode() + b"\n", mode) as beside:
        try:
            # A link fails where a rename would silently replace what somebody else wrote a moment ago.
            os.link(beside, path)
        except FileExistsError:
            return False
    return True


def write_back(path: Path, text: str | None) -> None:
    """Let the file be as `read_text` found it; None: not there."""
    if text is None:
        path.unlink(missing_ok=True)
    else:
        write_atomically(path, text)


@contextlib.contextmanager
def room_kept(folder: Path, size_bytes: int) -> Iterator[None]:
    """Hold a little of the disk for what must not fail to be written for want of it right afterwards."""
    room = folder / f".room-{socket.gethostname()}-{os.getpid()}"
    try:
        room.write_bytes(b"\0" * size_bytes)
        yield
    finally:
        room.unlink(missing_ok=True)


def fsync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def append_state(path: Path, value: Any) -> None:
    """`append_line` of a struct, or anything made of such, as one line of JSON."""
    append_line(path, json_line(value))


def append_line(path: Path, line: str, mode: int = SHARED_FILE_MODE) -> None:
    """Append one whole line under the file's lock, so that lines of several writers never split each other.

    O_APPEND alone is not atomic between NFS clients; the POSIX lock is. Starts on a fresh line when a crashed writer
    left half a one.
    """
    append_bytes(path, (line.rstrip("\n") + "\n").encode(), mode)


def append_bytes(path: Path, data: bytes, mode: int = SHARED_FILE_MODE) -> None:
    """`append_line` for bytes that already are whole lines."""
    created = not path.exists()
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, mode)
    try:
        if created:
            with contextlib.suppress(PermissionError):
                os.fchmod(fd, mode)
        _lock_within(fd, APPEND_LOCK_WAIT_S)
        end = os.fstat(fd).st_size
        if end and os.pread(fd, 1, end - 1) != b"\n":
            data = b"\n" + data
        _write_all(fd, data)
    finally:
        os.close(fd)


def _lock_within(fd: int, wait_s: float) -> bool:
    """Take the kernel's lock on `fd`, waiting up to `wait_s` seconds for it. Returns whether it was had."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)


@contextlib.contextmanager
def locked(path: Path, wait_s: float, what: str) -> Iterator[None]:
    """Hold the kernel's lock on `path` (it dies with its holder, so a file left behind never blocks anyone).

    Raises OpsctlError naming the holder when it is still held after `wait_s` seconds; `what` says what could not be
    done.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, SHARED_FILE_MODE)
    try:
        with contextlib.suppress(PermissionError):
            os.fchmod(fd, SHARED_FILE_MODE)
        if not _lock_within(fd, wait_s):
            holder = os.pread(fd, 200, 0).decode(errors="replace").partition("\n")[0].strip() or "somebody"
            raise OpsctlError(f"cannot {what}: {holder} holds {path}; try again when it is done")
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{account_and_host()} pid {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)
