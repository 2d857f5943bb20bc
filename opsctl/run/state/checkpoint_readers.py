"""Marks of processes that read a checkpoint for long, to send it: a prune keeps it.

A mark is a file in `.opsctl/reading` whose kernel lock ends with its process. Its mtime is a heartbeat, for hosts that
do not see each other's locks. Its name contains all that counts, so a mark can be made on a full disk.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from opsctl.core.account import account_and_host
from opsctl.core.files.heartbeats import beating, file_servers_now_ns
from opsctl.core.files.state_files import make_folder, write_all
from opsctl.core.files.trusted import Keepers, Untrusted, create_file, listed_within, open_within, opened_folder
from opsctl.run.config.paths import RunPaths
from trainer.formats.attempt.lease import HEARTBEAT_S, SILENT_S
from trainer.formats.file_lock import is_locked, lock_within

_LONGEST_WHY_BYTES = 200


@dataclass(frozen=True)
class _Mark:
    """The parts of a mark's name: ITERATION.PID.TOKEN.HOST; the host is last because it may have dots in its name."""

    iteration: int
    pid: int
    name: str
    host: str

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def is_own(self) -> bool:
        """Return whether it is this process's: opening and closing it would release its lock."""
        return self.is_here and self.pid == os.getpid()


@contextlib.contextmanager
def reading(paths: RunPaths, iteration: int, why: str, every_s: float = HEARTBEAT_S) -> Iterator[None]:
    """Mark the checkpoint of `iteration` as being read, so that no prune takes it; do so before looking at it. why: for
    people. Raises OSError.
    """
    make_folder(paths.output, paths.reading)
    name = f"{iteration}.{os.getpid()}.{secrets.token_hex(4)}.{socket.gethostname()}"
    with opened_folder(paths.output, paths.reading) as (folder, keepers):
        _clear_away_the_dead(folder, keepers, paths)
        new = paths.reading / f".{name}.new"
        fd = create_file(folder, new)
        try:
            lock_within(fd, 0)
            with contextlib.suppress(OSError):  # a full disk takes a name and no words
                write_all(fd, f"{why} by {account_and_host()}".encode()[:_LONGEST_WHY_BYTES])
            os.rename(new.name, name, src_dir_fd=folder, dst_dir_fd=folder)  # locked from the first moment on
            with beating(lambda: os.utime(fd), every_s):  # opening it again would release its lock
                yield
        finally:
            for one in (name, new.name):
                with contextlib.suppress(OSError):
                    os.unlink(one, dir_fd=folder)
            os.close(fd)


def being_read(paths: RunPaths) -> dict[int, str]:
    """Return the iterations of the checkpoints being read, each with who and why. Raises OSError."""
    try:
        with opened_folder(paths.output, paths.reading) as (folder, keepers):
            found = {}
            marks = _marks(folder)
            now_ns = _now_ns(folder, paths) if marks else None
            for mark in marks:
                with contextlib.suppress(FileNotFoundError, Untrusted):  # finished at this moment, or not trusted
                    if _lives(folder, keepers, paths, mark, now_ns):
                        found[mark.iteration] = _why(folder, keepers, paths, mark)
            return found
    except FileNotFoundError:
        return {}


def _marks(folder: int) -> list[_Mark]:
    found = []
    for name in listed_within(folder):
        iteration, _, rest = name.partition(".")
        pid, _, rest = rest.partition(".")
        if iteration.isdecimal() and pid.isdecimal():
            found.append(_Mark(int(iteration), int(pid), name, rest.partition(".")[2]))
    return found


def _now_ns(folder: int, paths: RunPaths) -> int | None:
    return file_servers_now_ns(folder, paths.reading / "heartbeats")


def _is_silent(folder: int, name: str, now_ns: int | None) -> bool:
    beat_ns = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns
    return now_ns is not None and now_ns - beat_ns > SILENT_S * 1e9


def _lives(folder: int, keepers: Keepers, paths: RunPaths, mark: _Mark, now_ns: int | None) -> bool:
    """Its lock says it on its own host; on others, or where files have no locks, a heartbeat that goes on."""
    if _is_silent(folder, mark.name, now_ns):
        return False
    if mark.is_own or not mark.is_here:
        return True
    fd = open_within(folder, keepers, paths.reading / mark.name)
    try:
        return is_locked(fd)
    finally:
        os.close(fd)


def _why(folder: int, keepers: Keepers, paths: RunPaths, mark: _Mark) -> str:
    if mark.is_own:
        return "this process"
    fd = open_within(folder, keepers, paths.reading / mark.name)
    try:
        return os.pread(fd, _LONGEST_WHY_BYTES, 0).decode(errors="replace") or "a process"
    finally:
        os.close(fd)


def _clear_away_the_dead(folder: int, keepers: Keepers, paths: RunPaths) -> None:
    names = listed_within(folder)
    now_ns = _now_ns(folder, paths) if names else None
    for mark in _marks(folder):
        with contextlib.suppress(OSError):
            if not _lives(folder, keepers, paths, mark, now_ns):
                os.unlink(mark.name, dir_fd=folder)
    for name in names:
        with contextlib.suppress(OSError):
            if name.startswith(".") and _is_silent(folder, name, now_ns):  # what a killed one had only begun
                os.unlink(name, dir_fd=folder)
