"""All that the checks may read of a run at one moment. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Flag, auto
from pathlib import Path

import msgspec
from msgspec import Struct

from opsctl.core.timestamps import iso
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.hidden_jobs import Unseen
from opsctl.run.checkpoints.inventory import Checkpoint
from opsctl.run.logs.records import Measured
from opsctl.run.state.alert_log import ChannelSeen
from opsctl.run.state.chains import Cancel, Chain
from opsctl.run.state.identity import Place
from opsctl.run.state.kill_switch import Deactivation, KillSwitchState
from opsctl.run.state.lease import Seen as Lease
from opsctl.slurm.nodes import Node
from opsctl.slurm.states import State
from opsctl.slurm.types import Job
from trainer.formats.attempt.lease import HEARTBEAT_S, Holder
from trainer.formats.attempt.node_samples import RankTiming
from trainer.formats.logs.guard_lines import GuardLine
from trainer.formats.logs.training_line import TrainingLine


class Part(Flag):
    """The parts of a snapshot. Each has its own source and its own cost."""

    QUEUE = auto()  # one question to Slurm; one more where others' jobs may be hidden
    NODES = auto()  # the running task's: one more question to Slurm
    PROGRESS = auto()  # the newest checkpoint and how long the training is to be
    LOG = auto()  # the end of the training log
    ATTEMPTS = auto()
    LEASE = auto()  # who may write the run, and its heartbeat
    KILL_SWITCH = auto()
    RUN_FILE = auto()  # how it differs from what is published
    PARTITION = auto()  # all nodes that the run may be given: the same question to Slurm as NODES
    SERIES = auto()  # the log's newest iterations one by one
    FILES = auto()  # the newest checkpoints' files against their manifests
    SPACE = auto()  # file systems, and how they filled
    PURGE = auto()  # files that the file system is about to remove: a walk
    CLOCKS = auto()  # of the nodes
    CRON = auto()
    CHANNELS = auto()
    HUB = auto()  # what waits to be sent to the hub, by the ledger; the hub is not asked
    BACKUPS = auto()  # what [backup] wants elsewhere, by the ledger here
    TIMINGS = auto()  # how long each rank of the running attempt computes by itself
    #: The parts that one screen shows. Scheduled checks read the rest.
    ALL = QUEUE | NODES | PROGRESS | LOG | ATTEMPTS | LEASE | KILL_SWITCH | RUN_FILE
    EVERYTHING = ALL | PARTITION | SERIES | FILES | SPACE | PURGE | CLOCKS | CRON | CHANNELS | HUB | BACKUPS | TIMINGS


class Space(Struct, frozen=True):
    """The use of one file system or quota at one time."""

    name: str  # the folder, or the quota's own name; the same at every look
    at: datetime
    used_bytes: int | None = None  # None, here and below: not told
    limit_bytes: int | None = None
    used_inodes: int | None = None
    limit_inodes: int | None = None
    percent: float | None = None  # of the bytes, if only that is known
    inode_percent: float | None = None
    how: str = ""  # "quota", "statvfs", "walk", "part of a walk"
    problem: str = ""  # why it could not be looked at

    @property
    def share(self) -> float | None:
        """The used share of the bytes, 0 to 1; more if a quota allows it. None: unknown."""
        return _share(self.used_bytes, self.limit_bytes, self.percent)

    @property
    def inode_share(self) -> float | None:
        """The used share of the inodes."""
        return _share(self.used_inodes, self.limit_inodes, self.inode_percent)


class Purge(Struct, frozen=True):
    """Files of the run that the file system is about to remove, because they were unused for long."""

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
    """The difference of a node's clock to the file server's."""

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
    """The state of a run's backups at one destination."""

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
    is_started: bool  # False: never, or stopped by a user
    carried_by: str = ""  # who, and via what
    period_s: float = 3600.0
    heartbeat_at: datetime | None = None  # of the last tick that began, by the file server
    next_due_at: datetime | None = None  # on the grid
    jobs: tuple[CronJob, ...] = ()
    problem: str = ""  # why it cannot be seen
    option: str = ""  # ` --folder F` for `opsctl cron`, where a person would find another cron folder


class PartitionNodes(Struct, frozen=True):
    """The nodes that the run may be given."""

    name: str
    total: int  # without those that the run excludes
    healthy: int  # idle, allocated, mixed and the like: Slurm gives them work
    example: str = ""  # of one that is not, with its reason


class Unsent(Struct, frozen=True):
    """The files of one kind that wait to be sent to the hub."""

    kind: str  # of opsctl.run.config.file_kinds.KINDS
    files: int
    since: datetime  # for so long at least
    last_sent_at: datetime | None = None  # of the kind; None: never
    example: str = ""  # the one that waits longest, as it is called there


def _share(used: int | None, limit: int | None, percent: float | None) -> float | None:
    if percent is not None:
        return percent / 100
    return used / limit if used is not None and limit else None


@dataclass(frozen=True)
class Published:
    """The newest revision, and how the run file differs from it."""

    name: str
    at: datetime
    by: str
    differs: tuple[str, ...] = ()  # keys, as table.key
    problem: str = ""  # why the run file could not be compared


@dataclass(frozen=True)
class Whereabouts:
    """A run's folder that is not where its id was made, or not where its tasks look for it."""

    here: Path  # the output folder
    place: Place
    elsewhere: tuple[tuple[str, Job], ...] = ()  # (folder where it looks, task in the queue)


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment. Times have a zone. A part that was not requested has its default values."""

    now: datetime
    # Part.QUEUE
    jobs: tuple[Job, ...] = ()  # the run's own, in any order; says nothing when `blind`
    blind: str | None = None  # why Slurm could not be asked
    was_submitted: bool = False
    unseen: tuple[Unseen, ...] = ()  # others' chains that may be queued and are not shown here
    whereabouts: Whereabouts | None = None  # None: the run is where its id was made, and its tasks look there
    # Part.NODES
    nodes: tuple[Node, ...] = ()  # the running task's, as far as Slurm tells
    # Part.PROGRESS
    checkpoint: Checkpoint | None = None
    checkpoint_at: datetime | None = None
    checkpoint_problem: str | None = None  # why it is unknown from which one the next task resumes
    revision_problem: str | None = None  # why the newest revision, and so how long the training is, cannot be read
    is_finished: bool = False  # `checkpoint` is the training's end
    total_samples: int | None = None
    total_iterations: int | None = None
    # Part.LOG
    measured: Measured = field(default_factory=Measured)
    log_written_at: datetime | None = None  # the log's last change, None without a log
    log_read_at: datetime | None = None  # when this was seen; None: at `now`
    # Part.ATTEMPTS
    attempts: tuple[Attempt, ...] = ()  # all, oldest first
    attempts_without_progress: int = 0  # the last ones, in a row
    learned_nothing: bool = False  # the last attempt has stopped itself, so the chain stops
    # Part.LEASE
    lease: Lease = field(default_factory=Lease)  # free also where it cannot be seen
    # Part.KILL_SWITCH
    kill_switch: KillSwitchState | None = None  # None: it cannot be seen
    cancelled: Cancel | None = None  # what a person cancelled, if nothing trains because of it
    deactivated: Deactivation | None = None  # of the kill switch, if nothing trains because it was triggered
    # Part.RUN_FILE
    published: Published | None = None  # None: nothing is
    # Part.PARTITION
    partition: PartitionNodes | None = None  # None: Slurm does not tell
    # Part.SERIES
    series: tuple[TrainingLine, ...] = ()  # as logged, oldest first, over restarts; an iteration may be there twice
    guarded: tuple[GuardLine, ...] = ()  # of the spike guard, among these lines
    # Part.FILES
    faulty: tuple[FaultyCheckpoint, ...] = ()
    # Part.SPACE
    spaces: tuple[Space, ...] = ()  # one of each, as now
    space_history: tuple[Space, ...] = ()  # earlier looks, oldest first
    # Part.PURGE
    purge: Purge | None = None
    # Part.CLOCKS
    clocks: tuple[Clock, ...] = ()
    # Part.CRON
    cron: CronSeen | None = None  # None: there is no cron folder
    # Part.CHANNELS
    channels: tuple[ChannelSeen, ...] = ()
    # Part.HUB
    unsent: tuple[Unsent, ...] = ()  # also empty for a run that has no [hub]
    # Part.BACKUPS
    copies: tuple[FarCopies, ...] = ()  # one for each destination
    # Part.TIMINGS
    timings: tuple[RankTiming, ...] = ()  # the newest ones, in any order; empty where nothing runs
    timed_attempt: str = ""  # the id of the attempt that they are of
    # Part.ATTEMPTS, too
    chains: tuple[Chain, ...] = ()  # what was submitted and when, oldest first
    # Part.QUEUE, too
    queue_age_s: float = 0.0  # how old Slurm's answer is
    queue_asked_at: datetime | None = None  # when Slurm gave it; None: it was not asked
    problems: tuple[tuple[Part, str], ...] = ()  # what was asked for and could not be looked at, and why

    def problem_of(self, parts: Part) -> str:
        """Return why one of `parts` could not be read; empty if all of those that were asked for could."""
        return next((why for part, why in self.problems if part in parts), "")

    @property
    def stopped_by(self) -> str:
        """Return which person stopped the training on purpose, and how; empty where it is to train."""
        if self.kill_switch is not None and self.kill_switch.is_triggered:
            return f"the kill switch is triggered {self.kill_switch.describe()}"
        if self.cancelled is not None:
            return self.cancelled.describe()
        if self.deactivated is None:
            return ""
        off = self.deactivated
        return f"by the kill switch, which {off.by or 'a user'} deactivated at {iso(off.at, 'minutes')}"

    @property
    def running(self) -> Job | None:
        """The task that has its nodes."""
        jobs = [job for job in sorted(self.jobs, key=queue_order) if job.is_running]
        # One that is completing may be listed next to its successor.
        return next((job for job in jobs if job.state != State.COMPLETING), jobs[0] if jobs else None)

    @property
    def writer_elsewhere(self) -> Holder | None:
        """The writer of the run by a recent heartbeat (at most three periods old), if it is none of `jobs`."""
        holder, age_s = self.lease.holder, self.lease.age_s
        if holder is None or (age_s is not None and age_s > 3 * HEARTBEAT_S):
            return None
        return None if any(job.job_id == holder.job_id for job in self.jobs) else holder

    @property
    def behind(self) -> tuple[Job, ...]:
        """The other jobs, in the order in which they may start."""
        running = self.running
        return tuple(job for job in sorted(self.jobs, key=queue_order) if job is not running)

    @property
    def standing(self) -> Measured:
        """`measured`, with the log's last iteration only if the training continues from it.

        An ended training resumes from its checkpoint, which is an earlier one after a crash, a rollback or
        `--load-fallback`. A training that has started and logged no iteration yet does too.
        """
        last, newest = self.measured.last_iteration, self.attempts[-1] if self.attempts else None
        if last is None or newest is None or self.checkpoint is None or self.checkpoint.iteration == last.iteration:
            return self.measured
        logged, opened = self.last_logged_at, newest.opened_at
        if newest.is_open and not (logged is not None and opened is not None and opened > logged):
            return self.measured
        return msgspec.structs.replace(self.measured, last_iteration=None)

    @property
    def last_logged_at(self) -> datetime | None:
        """When the last iteration was logged, at the latest: before the next time stamp and the end of the log."""
        if self.measured.last_iteration is None:
            return None
        known = [at for at in (self.measured.stamped_after_it, self.log_written_at) if at is not None]
        return min(known, default=None)

    @property
    def is_loss_age_a_minimum(self) -> bool:
        """Return whether other lines came after the last iteration, so that it may be older than `last_logged_at`."""
        return self.measured.is_followed or self.measured.stamped_after_it is not None


def with_newer_records(seen: Snapshot) -> Snapshot:
    """Return `seen` with a task as completing if its attempt has ended, by the run's records, since Slurm was asked."""
    asked_at = seen.queue_asked_at
    newest = {one.job_id: one for one in seen.attempts}  # of several attempts in one job the last counts

    def has_ended(job: Job) -> bool:
        one = newest.get(job.job_id)
        if asked_at is None or not job.is_running or one is None or one.is_open or one.closed_at is None:
            return False
        return one.closed_at > asked_at and (job.started_at is None or job.started_at <= one.closed_at)

    jobs = tuple(msgspec.structs.replace(job, state=State.COMPLETING) if has_ended(job) else job for job in seen.jobs)
    return replace(seen, jobs=jobs) if jobs != seen.jobs else seen


def queue_order(job: Job) -> tuple[int, int, int]:
    """Sort key: what runs, then what waits, then what is held; older first."""
    rank = 0 if job.is_running else 2 if job.is_held else 1
    return rank, job.array_job_id, job.job_id
