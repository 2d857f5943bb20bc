"""What a snapshot has beside the training itself: file systems, clocks, the cron, the channels. Pure."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class Space(Struct, frozen=True):
    """How full one file system, or one quota, was at one look."""

    name: str  # the folder, or the quota's own name; the same at every look
    at: datetime
    used_bytes: int | None = None  # None, here and below: not told
    limit_bytes: int | None = None
    used_inodes: int | None = None
    limit_inodes: int | None = None
    percent: float | None = None  # of the bytes, where only that is told
    inode_percent: float | None = None
    how: str = ""  # "quota", "statvfs", "walk", "part of a walk"
    note: str = ""  # what the quota says beside the numbers: above its soft limit, and for how long that may be
    problem: str = ""  # why it could not be looked at

    @property
    def share(self) -> float | None:
        """How full it is of bytes, 0 to 1; more where a quota lets one go beyond it. None: not told."""
        return _share(self.used_bytes, self.limit_bytes, self.percent)

    @property
    def inode_share(self) -> float | None:
        """How full it is of inodes."""
        return _share(self.used_inodes, self.limit_inodes, self.inode_percent)


class Purge(Struct, frozen=True):
    """Files of the run that the file system is about to remove, for nobody has read or written them for long."""

    folder: str
    files: int
    size_bytes: int
    first_at: datetime  # when the first of them goes
    example: str  # its path; one of the latest checkpoint's where there is one
    is_all: bool = True  # False: the look ran out of time
    hits_latest: bool = False  # files of the latest checkpoint are among them


class FaultyCheckpoint(Struct, frozen=True):
    """A checkpoint folder that is not what its manifest says, or what a save that never finished left."""

    name: str  # global_stepN
    fault: str
    is_latest: bool
    is_leftover: bool = False  # of a save; it may still go on where something runs. The next save removes it
    changed_at: datetime | None = None  # by the file server


class Clock(Struct, frozen=True):
    """How far a node's clock is from the file server's."""

    node: str
    off_s: float  # positive: it is ahead
    at: datetime  # of the reading, by the file server


class Overdue(Struct, frozen=True):
    """A checkpoint that a destination should have, and that is not proven there."""

    name: str
    saved_at: datetime


class LostCopy(Struct, frozen=True):
    """A backup that was found lost or damaged."""

    name: str  # of the checkpoint, or what else it is
    why: str
    is_here: bool  # what it is a copy of, so that it can be sent again
    is_elsewhere: bool = False  # whole, at another destination


class FarCopies(Struct, frozen=True):
    """How a run's backups are at one destination."""

    to: str
    overdue: tuple[Overdue, ...] = ()
    lost: tuple[LostCopy, ...] = ()
    data_lost: LostCopy | None = None  # of the data sets
    data_wanted_since: datetime | None = None  # None: they are not wanted there, or are there


class CronJob(Struct, frozen=True):
    """One job of the pseudo-cron, as its last run left it."""

    name: str  # "hourly/refill"
    state: str  # "done", "failed", "running", "hanging", "missing", "lost"
    failures: int = 0  # in a row, up to now
    since: datetime | None = None  # of the first of those
    detail: str = ""


class CronSeen(Struct, frozen=True):
    """The pseudo-cron that looks after this run."""

    folder: str
    is_started: bool  # False: never, or stopped by somebody
    carried_by: str = ""  # who, and via what
    period_s: float = 3600.0
    heartbeat_at: datetime | None = None  # of the last tick that began, by the file server
    next_due_at: datetime | None = None  # on the grid
    jobs: tuple[CronJob, ...] = ()
    problem: str = ""  # why it cannot be seen
    option: str = ""  # ` --folder F` for `opsctl cron`, where a person would find another cron folder


class Channel(Struct, frozen=True):
    """One alert channel, by its name without secrets."""

    name: str
    failing_since: datetime | None = None
    detail: str = ""
    waiting: int = 0  # messages that it has not taken yet


class PartitionNodes(Struct, frozen=True):
    """The nodes that the run may be given."""

    name: str
    total: int  # without those that the run excludes
    healthy: int  # idle, allocated, mixed and the like: Slurm gives them work
    example: str = ""  # of one that is not, with its reason


class Unsent(Struct, frozen=True):
    """What of one kind waits to be sent to the hub."""

    kind: str  # of runs.kinds.KINDS
    files: int
    since: datetime  # for so long at least
    last_sent_at: datetime | None = None  # of the kind; None: never
    example: str = ""  # the one that waits longest, as it is called there


def _share(used: int | None, limit: int | None, percent: float | None) -> float | None:
    if percent is not None:
        return percent / 100
    return used / limit if used is not None and limit else None
