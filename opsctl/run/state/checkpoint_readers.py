"""Marks of processes that read a checkpoint for long, to send it: a prune keeps it.

A mark is a file `ITERATION.TOKEN` in `.opsctl/reading`. Its mtime is a heartbeat: a mark that is silent is dead. Its
name contains all that counts, so a mark can be made on a full disk.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator

from opsctl.core.account import account_and_host
from opsctl.core.files.heartbeats import beating, file_servers_now_ns
from opsctl.core.files.state_files import make_folder, write_all
from opsctl.core.files.trusted import Untrusted, create_file, listed_within, opened_file, opened_folder
from opsctl.run.config.paths import RunPaths
from trainer.formats.attempt.lease import HEARTBEAT_S, SILENT_S

_LONGEST_WHY_BYTES = 200


@contextlib.contextmanager
def reading(paths: RunPaths, iteration: int, why: str, every_s: float = HEARTBEAT_S) -> Iterator[None]:
    """Mark the checkpoint of `iteration` as being read, so that no prune takes it; do so before looking at it. why: for
    people. Raises OSError.
    """
    make_folder(paths.output, paths.reading)
    _remove_dead(paths)
    with opened_folder(paths.output, paths.reading) as (folder, _):
        name = f"{iteration}.{secrets.token_hex(8)}"
        fd = create_file(folder, paths.reading / name)
        try:
            with contextlib.suppress(OSError):  # a full disk takes a name and no words
                write_all(fd, f"{why} by {account_and_host()}".encode()[:_LONGEST_WHY_BYTES])
            with beating(lambda: os.utime(fd), every_s):
                yield
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)


def being_read(paths: RunPaths) -> dict[int, str]:
    """Return the iterations of the checkpoints being read, each with who and why. Raises OSError."""
    return {iteration: why for iteration, _, why, is_dead in _marks(paths) if not is_dead}


def _marks(paths: RunPaths) -> list[tuple[int, str, str, bool]]:
    """Return (iteration, name, who and why, True if its heartbeat is silent) of each mark. Raises OSError."""
    found = []
    with contextlib.suppress(FileNotFoundError), opened_folder(paths.output, paths.reading) as (folder, _):
        names = [name for name in listed_within(folder) if name.partition(".")[0].isdecimal() and "." in name]
        now_ns = file_servers_now_ns(folder, paths.reading / "heartbeats") if names else None
        for name in names:
            with contextlib.suppress(FileNotFoundError, Untrusted):  # finished at this moment, or not trusted
                with opened_file(paths.output, paths.reading / name) as fd:
                    beat_ns = os.fstat(fd).st_mtime_ns
                    why = os.pread(fd, _LONGEST_WHY_BYTES, 0).decode(errors="replace") or "a process"
                is_dead = now_ns is not None and now_ns - beat_ns > SILENT_S * 1e9
                found.append((int(name.partition(".")[0]), name, why, is_dead))
    return found


def _remove_dead(paths: RunPaths) -> None:
    dead = [name for _, name, _, is_dead in _marks(paths) if is_dead]
    with opened_folder(paths.output, paths.reading) as (folder, _):
        for name in dead:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
