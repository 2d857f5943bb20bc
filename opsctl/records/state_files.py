"""Writing small state files so that a crash at any moment leaves either the old or the new one, never half."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opsctl.account import account_and_host
from opsctl.errors import OpsctlError

SHARED_FILE_MODE = 0o664
SHARED_FOLDER_MODE = 0o2775
#: What a disk that takes no more says, by errno.
FULL_DISK = {errno.ENOSPC: "no space left", errno.EDQUOT: "quota exceeded"}
#: A writer that hangs with the lock on a log must not stop the others: after this they append all the same.
APPEND_LOCK_WAIT_S = 5.0


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
    raw = data.encode() if isinstance(data, str) else data
    beside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            os.fchmod(fd, mode)
            view = memoryview(raw)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    fsync_folder(path.parent)


def write_json(path: Path, value: Any, mode: int = SHARED_FILE_MODE) -> None:
    """`write_atomically` of indented JSON with a final newline."""
    write_atomically(path, json.dumps(value, indent=2, sort_keys=False) + "\n", mode)


def fsync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
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
