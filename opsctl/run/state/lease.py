"""A run's lease: take it, keep it, release it, and see its holder.

`trainer.formats.attempt.lease` defines the file and its lock; here it is opened as other state files are. The heartbeat
is the file's mtime, stamped by the file server. Its age is measured with the same clock, against a file made next to
it. A process that waits for it to stop measures with its own clock how long it has not changed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from opsctl.core.files.heartbeats import file_servers_now_ns
from opsctl.core.files.state_files import write_all
from opsctl.core.files.trusted import judge_file, new_file_mode, opened_file, opened_folder
from opsctl.core.timestamps import now
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.identity import place_of
from trainer.formats.attempt.lease import (
    SILENT_S,
    End,
    Holder,
    Lease,
    OpenLease,
    ended_line,
    locked_lease,
    taken_line,
    why_lost,
)

#: Seconds to wait for another process's access. After that the file's content counts without its lock.
LOCK_WAIT_S = 30.0
#: The same for a heartbeat, which comes again.
BEAT_LOCK_WAIT_S = 2.0
#: Without a lock two that take it at once have both written after this, and read who was first.
SETTLE_S = 2.0


@dataclass(frozen=True)
class Held:
    """A lease that another process has."""

    holder: Holder
    beat_ns: int  # the file's mtime: to be compared with itself and with what the same file server stamps


@dataclass(frozen=True)
class Seen:
    """The lease as a reader sees it."""

    holder: Holder | None = None  # None: it is free
    age_s: float | None = None  # of the heartbeat; None where it is free, or we may write no file to compare with

    @property
    def is_silent(self) -> bool:
        """Return whether its heartbeat is so old that a task would take it."""
        return self.age_s is not None and self.age_s >= SILENT_S

    def told(self) -> str:
        """Return the holder in a sentence; empty when it is free."""
        if self.holder is None:
            return ""
        beat = "its heartbeat cannot be seen from here" if self.age_s is None else f"heartbeat {self.age_s:.0f} s ago"
        return f"{self.holder.named()} (lease {self.holder.number}, {beat})"


@dataclass
class OwnLease:
    """The lease in the hands of this process. It may be used by several threads."""

    paths: RunPaths
    holder: Holder
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def beat(self) -> str | None:
        """Stamp the heartbeat. Returns why the lease is lost, None while it is ours. Raises OSError."""
        with self._alone(BEAT_LOCK_WAIT_S) as opened:
            lease = opened.read()
            lost = why_lost(lease, self.holder)
            if lost is None:
                if lease.highest < self.holder.number:
                    _append(opened.fd, taken_line(self.holder))
                os.utime(opened.fd)
            return lost

    def end(self, why: str, wait_s: float = LOCK_WAIT_S) -> None:
        """Give it back, if it is still ours. Raises OSError."""
        with self._alone(wait_s) as opened:
            if why_lost(opened.read(), self.holder) is None:
                end = End(self.holder.number, why, self.holder.named(), now().replace(microsecond=0))
                _append(opened.fd, ended_line(end))

    @contextlib.contextmanager
    def _alone(self, wait_s: float) -> Iterator[OpenLease]:
        # The kernel's lock is the process's: a second descriptor that one thread closes would take it from another.
        if not self._turn.acquire(timeout=wait_s):
            raise TimeoutError(0, "the file system does not answer", str(self.paths.lease))
        try:
            with _opened(self.paths, wait_s) as opened:
                yield opened
        finally:
            self._turn.release()


def take(
    paths: RunPaths,
    attempt: str,
    job_id: int | None,
    user: str,
    why_over: Callable[[Held], str | None],
    *,
    wait_s: float = LOCK_WAIT_S,
    settle_s: float = SETTLE_S,
) -> OwnLease | Held:
    """Take the lease if it is free or `why_over` ends its holding, in one step under the file's lock. Without locks the
    file's first line wins. Raises OSError.
    """
    with _opened(paths, wait_s) as opened:
        lease = opened.read()
        own = Holder(lease.highest + 1, attempt, job_id, user, socket.gethostname(), now().replace(microsecond=0))
        lines = []
        if lease.holder is not None:
            held = Held(lease.holder, os.fstat(opened.fd).st_mtime_ns)
            why = why_over(held)
            if why is None:
                return held
            lines.append(ended_line(End(lease.highest, why, own.named(), own.taken_at)))
        _append(opened.fd, *lines, taken_line(own))
        is_locked = opened.is_locked
    if not is_locked:
        time.sleep(settle_s)
    with _opened(paths, wait_s) as opened:
        found = opened.read()
        if found.holder is not None and found.holder.attempt == attempt:
            return OwnLease(paths, found.holder)
        other = found.last or own  # nothing of ours was kept: as if we still had to wait for it
        return Held(other, os.fstat(opened.fd).st_mtime_ns)


def look(paths: RunPaths) -> Seen:
    """Return the holder and the age of its heartbeat; free without a lease and in a copy. Raises OSError."""
    if place_of(paths).is_another_runs:
        return Seen()
    try:
        with opened_folder(paths.output, paths.state) as (folder, _):
            with opened_file(paths.output, paths.lease) as fd:
                lease: Lease = OpenLease(fd, is_locked=False).read()
                beat_ns = os.fstat(fd).st_mtime_ns
            if lease.holder is None:
                return Seen()
            now_ns = file_servers_now_ns(folder, paths.lease)
    except FileNotFoundError:
        return Seen()
    return Seen(lease.holder, None if now_ns is None else max(0.0, (now_ns - beat_ns) / 1e9))


@contextlib.contextmanager
def publishing_held_off(paths: RunPaths, wait_s: float = LOCK_WAIT_S) -> Iterator[bool]:
    """Keep the lease's holder from publishing a checkpoint, for a moment; False without the lock."""
    with _opened(paths, wait_s) as opened:
        yield opened.is_locked


@contextlib.contextmanager
def _opened(paths: RunPaths, wait_s: float) -> Iterator[OpenLease]:
    """Open the lease's file, creating it if missing, with its lock if possible. Raises OSError, Untrusted."""
    with (
        opened_folder(paths.output, paths.state, make=True) as (folder, keepers),
        locked_lease(paths.lease.name, wait_s, dir_fd=folder, mode_if_new=new_file_mode(folder)) as opened,
    ):
        judge_file(os.fstat(opened.fd), keepers, paths.lease)
        yield opened


def _append(fd: int, *lines: str) -> None:
    """Whole lines at the file's end, on the disk when this returns; on a fresh line where a crash left half a one."""
    data = "".join(f"{line}\n" for line in lines).encode()
    end = os.fstat(fd).st_size
    if end and os.pread(fd, 1, end - 1) != b"\n":
        data = b"\n" + data
    write_all(fd, data)
    os.fsync(fd)
