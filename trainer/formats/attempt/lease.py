"""The writer lease of a training: a file of lines that only grows. Its mtime is the heartbeat.

    {"event": "taken", "number": 3, "attempt": "...", "job_id": 4711, "user": "ada", "host": "x01", "at": "..."}
    {"event": "ended", "number": 3, "why": "...", "by": "job", "at": "..."}

The last attempt to take the lease holds it until a line ends it. Each holder's number is higher than all earlier ones,
so a writer can detect that it was replaced. The file is read and changed only under its lock and after a fresh open:
two NFS clients that append without a lock lose bytes, and an older handle reads old contents. The holder touches the
file every `HEARTBEAT_S` seconds. The mtime is the file server's clock, so clocks of two hosts are never compared.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from trainer.formats import tolerant
from trainer.formats.file_lock import lock_within, open_to_lock, refuse_other_than_a_plain_file
from trainer.formats.json_text import Moment, json_line

LEASE_FILE = "lease.jsonl"
#: Seconds between two heartbeats.
HEARTBEAT_S = 20.0
#: Seconds without a heartbeat, seen by another process, after which the holder counts as dead.
SILENT_S = 180.0
_LARGEST_BYTES = 1 << 24
_CHUNK_BYTES = 1 << 20
_TAKEN, _ENDED = "taken", "ended"


class Holder(msgspec.Struct, frozen=True):
    """The attempt, user and host that hold the lease."""

    number: int
    attempt: str
    job_id: int | None = None
    user: str = ""
    host: str = ""
    taken_at: Moment | None = None

    def named(self) -> str:
        """Return the holder as part of a sentence."""
        job = "something" if self.job_id is None else f"job {self.job_id}"
        return f"{job} of {self.user or 'an unknown user'} on {self.host or 'an unknown host'}"


class End(msgspec.Struct, frozen=True):
    """The end of the lease with `number`."""

    number: int
    why: str = ""
    by: str = ""
    at: Moment | None = None


@dataclass(frozen=True)
class Lease:
    """The state of the lease. `end` is the end of the last holder's lease."""

    last: Holder | None = None
    end: End | None = None

    @property
    def holder(self) -> Holder | None:
        """The current holder; None if the lease is free."""
        return self.last if self.end is None else None

    @property
    def highest(self) -> int:
        """The highest number so far; 0 before the first."""
        return self.last.number if self.last else 0


class _Line(msgspec.Struct, frozen=True):
    """Any line of the file, with the fields that fit."""

    event: str
    number: int
    attempt: str = ""
    job_id: int | None = None
    user: str = ""
    host: str = ""
    why: str = ""
    by: str = ""
    at: Moment | None = None


def taken_line(holder: Holder) -> str:
    """Return the line, without its newline, by which `holder` takes the lease."""
    fields = msgspec.structs.asdict(holder)
    fields["at"] = fields.pop("taken_at")
    return json_line({"event": _TAKEN, **fields})


def ended_line(end: End) -> str:
    """Return the line, without its newline, that ends a lease."""
    return json_line({"event": _ENDED, **msgspec.structs.asdict(end)})


def fold(data: bytes) -> Lease:
    """Return the lease that the file's bytes describe. Invalid and truncated lines are skipped.

    A line that takes the lease counts only if its number is higher than all before it. If two take the same number, on
    a file system without locks, the first line counts for both.
    """
    lease = Lease()
    for text in data.split(b"\n"):
        line = tolerant.decode(text, _Line) if text else None
        if line is None:
            continue
        if line.event == _TAKEN and line.number > lease.highest:
            lease = Lease(Holder(line.number, line.attempt, line.job_id, line.user, line.host, line.at))
        elif line.event == _ENDED and lease.holder is not None and line.number == lease.highest:
            lease = Lease(lease.last, End(line.number, line.why, line.by, line.at))
    return lease


def why_lost(lease: Lease, own: Holder) -> str | None:
    """Return why `own` may no longer write, as a clause; None if it may.

    A lease without that number (its file was lost or is older) is no reason to stop writing.
    """
    last = lease.last
    if last is None or last.number < own.number:
        return None
    if last.number > own.number or last.attempt != own.attempt:
        return f"{last.named()} has taken the lease with number {last.number}" + (
            "" if lease.holder else ", and has ended it"
        )
    if lease.end is not None:
        return f"{lease.end.by or 'another process'} has ended the lease ({lease.end.why or 'no reason given'})"
    return None


@dataclass(frozen=True)
class OpenLease:
    """The lease's file, open for reading and appending."""

    fd: int
    is_locked: bool  # False: another process kept the lock for too long, or the file system has no locks

    def read(self) -> Lease:
        """Read the file. Raises OSError, also if the file is far too long."""
        data = bytearray()
        while len(data) <= _LARGEST_BYTES:
            part = os.pread(self.fd, _CHUNK_BYTES, len(data))
            if not part:
                return fold(bytes(data))
            data += part
        raise OSError(errno.EFBIG, f"larger than {_LARGEST_BYTES} bytes")


@contextlib.contextmanager
def locked_lease(
    path: str | os.PathLike[str], wait_s: float, dir_fd: int | None = None, mode_if_new: int | None = None
) -> Iterator[OpenLease]:
    """Open the lease's file and lock it if the lock is free within `wait_s` seconds.

    path: of the file, or its name in the open folder `dir_fd`. mode_if_new: create the file with this mode if it does
    not exist. Raises OSError if the file does not exist, cannot be opened, or is not a regular file with one name;
    links are not followed. The lock belongs to the process: closing any other descriptor of the file releases it.
    """
    fd = open_to_lock(path, dir_fd, mode_if_new)
    try:
        refuse_other_than_a_plain_file(fd, path)
        is_locked = lock_within(fd, wait_s)
        refuse_other_than_a_plain_file(fd, path)  # it may have been replaced during the wait
        yield OpenLease(fd, is_locked)
    finally:
        os.close(fd)
