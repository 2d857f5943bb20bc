"""Signs of life that others look for: a file's mtime, stamped by the file server, whose clock alone counts."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from opsctl.core.files.trusted import create_file, opened_file

#: How long the end of the thread may take when the file system does not answer.
_END_WAIT_S = 10.0


@contextlib.contextmanager
def beating(stamp: Callable[[], object], every_s: float) -> Iterator[None]:
    """Call `stamp` every `every_s` seconds, in a thread, while the block lasts. One that fails ends nothing."""
    ended = threading.Event()

    def beats() -> None:
        while not ended.wait(every_s):
            with contextlib.suppress(OSError):
                stamp()

    thread = threading.Thread(target=beats, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_END_WAIT_S)


def beat(root: Path, path: Path) -> datetime:
    """Stamp the file by the file server's clock, creating it if needed, and return the time. Raises OSError."""
    with opened_file(root, path, os.O_RDWR | os.O_CREAT) as fd:
        os.utime(fd)
        return datetime.fromtimestamp(os.fstat(fd).st_mtime, UTC).astimezone()


def beaten_at(root: Path, path: Path) -> datetime | None:
    """Return when `beat` last stamped the file; None without a file. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), opened_file(root, path) as fd:
        return datetime.fromtimestamp(os.fstat(fd).st_mtime, UTC).astimezone()
    return None


def file_servers_now_ns(folder: int, beside: Path) -> int | None:
    """Return the clock that stamps files in `folder`, by a file made next to `beside`; None if none can be made."""
    moment = beside.with_name(f".{beside.name}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}.now")
    try:
        fd = create_file(folder, moment)
        try:
            os.utime(fd)
            return os.fstat(fd).st_mtime_ns
        finally:
            os.close(fd)
            os.unlink(moment.name, dir_fd=folder)
    except OSError:
        return None
