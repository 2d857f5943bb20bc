"""Who may write a training: the lease, a file of lines that only grows, beside a heartbeat that is its own mtime.

    {"event": "taken", "number": 3, "attempt": "...", "job_id": 4711, "user": "ada", "host": "x01", "at": "..."}
    {"event": "ended", "number": 3, "why": "...", "by": "job", "at": "..."}

The last to have taken it holds it until a line says that this ended. Every taking has a number above all before it, so
a writer that shows its number can be told that it was overtaken. The file is changed and believed only under its own
lock and as a fresh open reads it: between two NFS clients appending alone loses bytes, and an older handle reads what
is old. The holder touches the file every `HEARTBEAT_S` seconds; the mtime is the file server's clock, and no two
hosts' clocks are ever compared.
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
#: Seconds between two touches of the file by its holder.
HEARTBEAT_S = 20.0
#: A holder whose heartbeat somebody has watched stand still for so many seconds is gone.
SILENT_S = 180.0
_LARGEST_BYTES = 1 << 24
_CHUNK_BYTES = 1 << 20
_TAKEN, _ENDED = "taken", "ended"


class Holder(msgspec.Struct, frozen=True):
    """Who has taken the lease."""

    number: int
    attempt: str
    job_id: int | None = None
    user: str = ""
    host: str = ""
    taken_at: Moment | None = None

    def named(self) -> str:
        """The holder in a sentence."""
        job = "something" if self.job_id is None else f"job {self.job_id}"
        return f"{job} of {self.user or 'somebody'} on {self.host or 'an unknown host'}"


class End(msgspec.Struct, frozen=True):
    """How the holding of `number` ended."""

    number: int
    why: str = ""
    by: str = ""
    at: Moment | None = None


@dataclass(frozen=True)
class Lease:
    """What the lines say. `end` is of the last taking."""

    last: Holder | None = None
    end: End | None = None

    @property
    def holder(self) -> Holder | None:
        """Who has it now; None when it is free."""
        return self.last if self.end is None else None

    @property
    def highest(self) -> int:
        """The highest number ever taken, 0 before the first."""
        return self.last.number if self.last else 0


class _Line(msgspec.Struct, frozen=True):
    """Any line of the file, as far as it fits."""

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
    """The line, without its end, by which `holder` takes the lease."""
    fields = msgspec.structs.asdict(holder)
    fields["at"] = fields.pop("taken_at")
    return json_line({"event": _TAKEN, **fields})


def ended_line(end: End) -> str:
    """The line, without its end, that says that a holding is over."""
    return json_line({"event": _ENDED, **msgspec.structs.asdict(end)})


def fold(data: bytes) -> Lease:
    """The file's bytes as a lease. What is no line of it, a half one too, is passed over.

    A taking whose number is not above all before it never happened: of two that took the same number, on a file system
    without locks, the first line counts for both of them.
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
    """Why `own` may not write any more, in a clause; None while nothing says that.

    A lease that never knew the number, because its file was lost or is older, says nothing against it.
    """
    last = lease.last
    if last is None or last.number < own.number:
        return None
    if last.number > own.number or last.attempt != own.attempt:
        return f"{last.named()} has taken the lease with number {last.number}" + (
            "" if lease.holder else ", and has ended it"
        )
    if lease.end is not None:
        return f"{lease.end.by or 'somebody'} has ended the lease ({lease.end.why or 'no reason given'})"
    return None


@dataclass(frozen=True)
class OpenLease:
    """The lease's file, open to be read and appended to."""

    fd: int
    is_locked: bool  # False: somebody else kept the lock for too long, or the file system has none

    def read(self) -> Lease:
        """What the file says now. Raises OSError, also of a file that is far too long."""
        data = bytearray()
        while len(data) <= _LARGEST_BYTES:
            part = os.pread(self.fd, _CHUNK_BYTES, len(data))
            if not part:
                return fold(bytes(data))
            data += part
        raise OSError(errno.EFBIG, f"more than {_LARGEST_BYTES} bytes")


@contextlib.contextmanager
def locked_lease(
    path: str | os.PathLike[str], wait_s: float, dir_fd: int | None = None, mode_if_new: int | None = None
) -> Iterator[OpenLease]:
    """The lease's file, freshly opened, with its lock held if that is to be had within `wait_s` seconds.

    path: of the file, or its name in the open folder `dir_fd`. mode_if_new: the file is made with this mode where there
    is none. Raises OSError where there is none, where it cannot be opened, and of what is no regular file with one
    name: links are not followed. The lock is the process's: closing any other descriptor of the file gives it up.
    """
    fd = open_to_lock(path, dir_fd, mode_if_new)
    try:
        refuse_other_than_a_plain_file(fd, path)
        is_locked = lock_within(fd, wait_s)
        refuse_other_than_a_plain_file(fd, path)  # while we waited it may have been replaced
        yield OpenLease(fd, is_locked)
    finally:
        os.close(fd)
