"""The number of arrays that a run should have in the queue. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from opsctl.slurm.arrays import array_problem, count_tasks
from opsctl.slurm.states import State
from opsctl.slurm.types import Job

#: A training takes longer than its iterations alone: evaluations, saves, starts.
_SLACK = 1.1


def arrays_behind(jobs: Iterable[Job]) -> tuple[int, ...]:
    """Return the ids of arrays that have not started, behind the running or first one, in order."""
    alive = [job for job in jobs if job.state != State.COMPLETING]
    started = {job.array_job_id for job in alive if not job.is_pending}
    waiting = sorted({job.array_job_id for job in alive} - started)
    return tuple(waiting if started else waiting[1:])


def arrays_missing(jobs: Sequence[Job], keep_queued: int, left_s: float | None, per_task_s: float, tasks: int) -> int:
    """Return how many more arrays to queue behind `jobs`: up to `keep_queued`, but no more than the training needs.
    left_s: None if unknown. per_task_s: training time of a task. tasks: of a new array.
    """
    if keep_queued <= 0:
        return 0
    if all(job.state == State.COMPLETING for job in jobs):
        return 1
    missing = max(0, keep_queued - len(arrays_behind(jobs)))
    if left_s is None or per_task_s <= 0 or tasks <= 0:
        return missing
    uncovered_s = left_s * _SLACK - sum(_trains_s(job, per_task_s) for job in jobs)
    return min(missing, max(0, math.ceil(uncovered_s / (per_task_s * tasks))))


def _trains_s(job: Job, per_task_s: float) -> float:
    if job.state == State.COMPLETING:
        return 0.0
    if job.is_pending:
        tasks = 1 if not job.array_task or array_problem(job.array_task) else count_tasks(job.array_task)
        return tasks * per_task_s
    return max(0.0, per_task_s - job.elapsed_s)
