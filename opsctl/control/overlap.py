"""Whether a new chain would run beside a live one, and what it has to wait for. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from opsctl.errors import OpsctlError, UsageError
from opsctl.slurm.types import Job

AUTO = "auto"
_ID = re.compile(r"\d+")
#: The job ids in squeue's dependency text: `afterany:12_*(unfulfilled)`.
_DEPENDENCY_ID = re.compile(r"[:](\d+)")


def what_to_wait_for(live: Sequence[Job], after: str | None, name: str) -> tuple[str, ...]:
    """The arrays that a new chain of run `name` depends on, given the run's `live` jobs and `--after`.

    Raises OpsctlError when it would run beside one of them, UsageError for an `--after` that is no job.
    """
    arrays = live_arrays(live)
    if after == AUTO:
        return tuple(str(array) for array in arrays)
    if after is None:
        if arrays:
            raise OpsctlError(f"{name} is live: {describe(live)}; chain behind it with opsctl submit --after auto")
        return ()
    if not _ID.fullmatch(after):
        raise UsageError(f"--after {after}: neither auto nor the id of a job or array, like 12")
    beside = [array for array in arrays if array not in _before(int(after), live)]
    if beside:
        others = [job for job in live if job.array_job_id in beside]
        raise OpsctlError(
            f"{name} would run beside itself: --after {after} does not wait for {describe(others)}; use --after auto"
        )
    return (after,)


def warn_of_nothing_to_wait_for(after: str | None, queue: Iterable[Job]) -> str | None:
    """A warning when `--after` names a job that is not in the queue: Slurm then just starts the chain."""
    if after is None or after == AUTO or any(int(after) in (job.job_id, job.array_job_id) for job in queue):
        return None
    return f"no job {after} is in the queue, it has ended or never was: the chain does not wait for it"


def live_arrays(live: Iterable[Job]) -> list[int]:
    """The array ids of these jobs, in the order of submission."""
    return sorted({job.array_job_id for job in live})


def describe(jobs: Iterable[Job]) -> str:
    """Who has what: `12_1 RUNNING (alice), 12_[2-3%1] PENDING (alice)`."""
    shown = sorted(jobs, key=lambda job: (job.array_job_id, job.is_pending, job.job_id))
    return ", ".join(f"{job.display_id} {job.state} ({job.user})" for job in shown)


def _before(array: int, live: Iterable[Job]) -> set[int]:
    """`array` and every array it waits for, directly or not."""
    waits: dict[int, set[int]] = {}
    for job in live:
        found = {int(number) for number in _DEPENDENCY_ID.findall(job.dependency)}
        waits.setdefault(job.array_job_id, set()).update(found)
    reached: set[int] = set()
    todo = [array]
    while todo:
        one = todo.pop()
        if one not in reached:
            reached.add(one)
            todo.extend(waits.get(one, ()))
    return reached
