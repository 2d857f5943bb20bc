"""What a snapshot has beside the training itself: file systems, clocks, the cron, the channels. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Space:
    """How full one file system, or one quota, was at one look."""

    name: str  # the folder, or the quota's own name; the same at every look
    at: datetime
    used_bytes: int | None = None  # None, here and below: not told
    limit_bytes: int | None = None
    used_inodes: int | None = None
    limit_inodes: int | None = None
    how: str = ""  # "quota", "statvfs", "walk", "part of a walk"
    problem: str = ""  # why it could not be looked at


@dataclass(frozen=True)
class Purge:
    """Files of the run that the file system is about to remove, for nobody has read or written them for long."""

    folder: str
    files: int
    size_bytes: int
    first_at: datetime  # when the first of them goes
    example: str  # its path
    is_all: bool = True  # False: the look ran out of time


@dataclass(frozen=True)
class FaultyCheckpoint:
    """A checkpoint folder that is not what its manifest says."""

    name: str  # global_stepN
    fault: str
    is_latest: bool


@dataclass(frozen=True)
class Clock:
    """How far a node's clock is from the file server's."""

    node: str
    off_s: float  # positive: it is ahead
    at: datetime  # of the reading, by the file server


@dataclass(frozen=True)
class CronJob:
    """One job of the pseudo-cron, as its last run left it."""

    name: str  # "hourly/refill"
    state: str  # "done", "failed", "running", "hanging", "missing", "lost"
    failures: int = 0  # in a row, up to now
    since: datetime | None = None  # of the first of those
    detail: str = ""


@dataclass(frozen=True)
class CronSeen:
    """The pseudo-cron that looks after this run."""

    folder: str
    is_started: bool  # False: never, or stopped by somebody
    carried_by: str = ""  # who, and via what
    period_s: float = 3600.0
    heartbeat_at: datetime | None = None  # of the last tick that began, by the file server
    next_due_at: datetime | None = None  # on the grid
    jobs: tuple[CronJob, ...] = ()
    problem: str = ""  # why it cannot be seen


@dataclass(frozen=True)
class Channel:
    """One alert channel, by its name without secrets."""

    name: str
    failing_since: datetime | None = None
    detail: str = ""
    waiting: int = 0  # messages that it has not taken yet


@dataclass(frozen=True)
class PartitionNodes:
    """The nodes that the run may be given."""

    name: str
    total: int
    healthy: int  # idle, allocated, mixed and the like: Slurm gives them work
    example: str = ""  # of one that is not, with its reason
