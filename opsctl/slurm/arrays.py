"""Job arrays as sbatch writes them: `1-3%1`. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from opsctl.core.errors import UsageError
from opsctl.slurm.states import State
from opsctl.slurm.types import Job

_ARRAY = re.compile(r"\d+(?:-\d+(?::\d+)?)?(?:,\d+(?:-\d+(?::\d+)?)?)*")
#: More than any cluster's MaxArraySize: a slip of the finger should not take minutes to count.
_MOST_TASKS = 4_000_001


def one_at_a_time(array: str) -> str:
    """Return `array` with `%1`, because its tasks continue each other. Raises UsageError for an invalid array."""
    if problem := array_problem(array):
        raise UsageError(f"--array {array}: {problem}")
    return f"{array.strip().partition('%')[0]}%1"


def array_problem(array: str) -> str | None:
    """Why tasks of one training cannot be submitted as `array`; None when they can."""
    tasks, percent, limit = array.strip().partition("%")
    if not _ARRAY.fullmatch(tasks) or (percent and not limit.isdigit()):
        return "not an array as sbatch takes it, like 1-10%1"
    if percent and limit != "1":
        return f"{limit} tasks of one training cannot run side by side; use {tasks}%1"
    for part in tasks.split(","):
        first, last, step = _range(part)
        if last < first or step < 1:
            return f"{part} is empty; ranges go up, like 1-10"
        if last >= _MOST_TASKS:
            return f"{last} is more than any Slurm takes"
    return None


def count_tasks(array: str) -> int:
    """Return the number of tasks of an array, or of its pending part."""
    return len(tasks_of(array))


def split_array(array: str, largest: int) -> tuple[str, ...]:
    """`array`, or as many tasks in several arrays, where Slurm takes no task number beyond `largest`."""
    tasks = tasks_of(array)
    if not tasks or max(tasks) <= largest:
        return (array,)
    whole, rest = divmod(len(tasks), largest)
    return tuple(f"1-{count}%1" for count in (*[largest] * whole, *[rest] * bool(rest)))


def largest_task(configuration: Mapping[str, str]) -> int | None:
    """Return the largest task number that a Slurm with this configuration takes; None if unknown."""
    said = configuration.get("MaxArraySize", "")
    return int(said) - 1 if said.isdigit() and int(said) > 1 else None


def tasks_of(array: str) -> set[int]:
    """Return the numbers of the tasks of an array, or of its pending part; none without an array."""
    indices: set[int] = set()
    for part in filter(None, array.partition("%")[0].split(",")):
        first, last, step = _range(part)
        indices.update(range(first, last + 1, step))
    return indices


def _range(part: str) -> tuple[int, int, int]:
    """(first, last, step) of `4`, `4-9` or `4-9:2`."""
    bounds, _, step = part.partition(":")
    first, _, last = bounds.partition("-")
    return int(first), int(last or first), int(step or 1)


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
