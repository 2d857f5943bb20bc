"""Decide after a failed attempt whether its job starts the next one, and on which nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.failure_limit import FAILURE_LIMIT, failed_nodes, without_progress
from opsctl.slurm.durations import format_duration

#: Endings after which another start in the same job can help.
_CAN_HELP = frozenset({Ending.SIGNAL, Ending.FAILED, Ending.HANG, Ending.NODE_FAILURE, Ending.OUT_OF_MEMORY})
#: Less training time than this is not worth a start, seconds.
LEAST_LEFT_S = 120.0


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
        if fewer:
            return Decision(left, train_on=fewer)
        return Decision(None, f"{', '.join(failed)} failed, and the job has {job.spare or 'no'} spare nodes")
    if failed:
        return Decision(left)
    if ended.reason == Ending.NODE_FAILURE:
        return Decision(None, "the lost node is not known")
    why = _why_not_here(ended, attempts, since, job)
    return Decision(None, why) if why else Decision(tuple(job.allocated))


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
