"""Decide after a failed attempt whether its job starts the next one, and on which nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median

from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.failure_limit import FAILURE_LIMIT, failed_nodes, without_progress
from opsctl.slurm.durations import format_duration

#: Endings after which another start in the same job can help.
_CAN_HELP = frozenset({Ending.SIGNAL, Ending.FAILED, Ending.HANG, Ending.NODE_FAILURE, Ending.OUT_OF_MEMORY})
#: Less training time than this is not worth a start, seconds.
LEAST_LEFT_S = 120.0
#: The last waits between jobs that count for the next one.
_WAITS = 5


@dataclass(frozen=True)
class JobNow:
    """The job whose attempt has failed."""

    allocated: Sequence[str]  # its nodes, without those that failed earlier
    used: Sequence[str]  # those of them that trained
    spare: int  # number of nodes that are not needed
    restarts: int  # most restarts in one job, except on spare nodes
    time_left_s: float | None = None  # until the training must leave for the time limit; None: no limit is known
    must_leave: str = ""  # why the job has to leave (kill switch, signal, request); else empty
    #: The largest number of nodes, up to this one, on which another layout keeps the global batch; 0: none may be used.
    fewer: Callable[[int], int] = lambda _left: 0
    has_next: Callable[[], bool] = lambda: True  # False: no task is known to be in the queue after this job


@dataclass(frozen=True)
class Decision:
    """The nodes with which the job continues; None: the job ends."""

    nodes: tuple[str, ...] | None
    why: str = ""  # the job ends; empty where the ending itself says so
    train_on: int | None = None  # so many of them; None: as many as before


def after_failure(ended: Attempt, attempts: Sequence[Attempt], since: datetime, job: JobNow) -> Decision:
    """Return the nodes with which the job of `ended` starts the next attempt, or why it does not.

    attempts: the run's, including `ended`. since: from when attempts count for the failure limit. The next task gets
    at least one more attempt before that limit: it has other nodes, and starts later.
    """
    if ended.reason not in _CAN_HELP:
        return Decision(None)
    if job.must_leave:
        return Decision(None, job.must_leave)
    if job.time_left_s is not None and job.time_left_s < LEAST_LEFT_S:
        time_left = format_duration(max(0.0, job.time_left_s))
        return Decision(None, f"{time_left} are left to train in this job")
    failed = [node for node in job.used if node in failed_nodes(ended)]
    left = tuple(node for node in job.allocated if node not in failed)
    if len(failed) > job.spare:
        fewer = job.fewer(len(left))
        if not fewer:
            return Decision(None, f"{', '.join(failed)} failed, and the job has {job.spare or 'no'} spare nodes")
        why = _why_not_on_fewer(fewer, attempts, job)
        return Decision(None, why) if why else Decision(left, train_on=fewer)
    if failed:
        return Decision(left)
    if ended.reason == Ending.NODE_FAILURE:
        return Decision(None, "the lost node is not known")
    why = _why_not_here(ended, attempts, since, job)
    return Decision(None, why) if why else Decision(tuple(job.allocated))


def _why_not_on_fewer(fewer: int, attempts: Sequence[Attempt], job: JobNow) -> str:
    """Return why the next task, on all nodes, is better than the rest of this job on `fewer`; else empty."""
    waits_s = [
        (after.opened_at - before.closed_at).total_seconds()
        for before, after in pairwise(attempts)
        if before.job_id != after.job_id and before.closed_at is not None and after.opened_at is not None
    ]
    if not waits_s or job.time_left_s is None:
        return ""
    wait_s, lost_s = median(waits_s[-_WAITS:]), job.time_left_s * (1 - fewer / len(job.used))
    if lost_s <= wait_s or not job.has_next():
        return ""
    lost, wait = format_duration(lost_s), format_duration(max(0.0, wait_s))
    return f"{fewer} nodes would lose {lost} until its limit, and the tasks before it waited {wait}"


def _why_not_here(ended: Attempt, attempts: Sequence[Attempt], since: datetime, job: JobNow) -> str:
    """Return why another start on the same nodes would not help; else empty."""
    if ended.restart >= job.restarts:
        return f"[slurm] restarts = {job.restarts}"
    if not ended.made_checkpoint and ended.verdict is not None and ended.verdict.user_fault:
        return f"no new checkpoint, and the cause would remain: {ended.verdict.words}"
    row = without_progress(attempts, since)
    if row >= FAILURE_LIMIT - 1:
        return f"{row} attempts in a row without a new checkpoint"
    return ""
