"""Return whether a new chain would run beside a live one, and what it has to wait for. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from opsctl.core.errors import OpsctlError, UsageError
from opsctl.run.attempts.hidden_jobs import CANNOT_SEE, Unseen
from opsctl.run.attempts.hidden_jobs import describe as describe_unseen
from opsctl.slurm.types import Job

AUTO = "auto"
_ID = re.compile(r"\d+")
#: The job ids in squeue's dependency text: `afterany:12_*(unfulfilled)`.
_DEPENDENCY_ID = re.compile(r"[:](\d+)")


def what_to_wait_for(
    live: Sequence[Job], after: str | None, name: str, unseen: Sequence[Unseen] = ()
) -> tuple[str, ...]:
    """Return the arrays on which a new chain of run `name` depends, given `--after` and the run's live and hidden jobs.

    live: the visible jobs. unseen: other users' chains that are hidden; Slurm does not wait for an id that has ended.
    Raises OpsctlError if the chain would or might run at the same time as one of them, UsageError if `--after` is not a
    job.
    """
    arrays = live_arrays(live)
    cut_off = [one for one in unseen if not one.array_job_id]
    if cut_off:
        raise OpsctlError(
            f"{name} may be live: {CANNOT_SEE}, and {describe_unseen(cut_off)} is still open; "
            f"{cut_off[0].user} settles it with the next opsctl submit, revise or cancel"
        )
    if after == AUTO:
        return tuple(str(array) for array in sorted({*arrays, *(one.array_job_id for one in unseen)}))
    if after is None:
        if arrays:
            raise OpsctlError(
                f"{name} is in the queue: {describe(live)}; to queue behind it: opsctl submit --after auto"
            )
        if unseen:
            raise OpsctlError(
                f"{name} may be live: {CANNOT_SEE}, and nothing shows that {describe_unseen(unseen)} has ended; "
                "opsctl submit --after auto waits for it"
            )
        return ()
    if not _ID.fullmatch(after):
        raise UsageError(f"--after {after}: neither auto nor the id of a job or array, like 12")
    before = _before(int(after), live, unseen)
    beside = [describe([job for job in live if job.array_job_id not in before])]
    beside += [describe_unseen([one for one in unseen if one.array_job_id not in before])]
    if any(beside):
        what = ", ".join(filter(None, beside))
        raise OpsctlError(f"{name} would run twice at once: --after {after} does not wait for {what}; use --after auto")
    return (after,)


def warn_of_waiting_unseen(unseen: Sequence[Unseen]) -> list[str]:
    """Return a warning that the jobs for which the chain waits may have ended."""
    if not unseen:
        return []
    return [f"{CANNOT_SEE}: the chain waits for {describe_unseen(unseen)}, and for nothing if that has ended"]


def warn_of_what_is_fixed_unseen(unseen: Sequence[Unseen], fixed: Sequence[str]) -> list[str]:
    """Return a warning that the [slurm] keys `fixed` are published and that tasks of `unseen` may have other values."""
    if not unseen or not fixed:
        return []
    return [f"{', '.join(fixed)} changed, which Slurm has fixed for {describe_unseen(unseen)} if it is still queued"]


def warn_of_nothing_to_wait_for(after: str | None, queue: Iterable[Job], unseen: Sequence[Unseen] = ()) -> list[str]:
    """Return a warning if `--after` names a job that is not in the queue: Slurm then starts the chain at once."""
    if after is None or after == AUTO or any(int(after) in (job.job_id, job.array_job_id) for job in queue):
        return []
    if any(int(after) == one.array_job_id for one in unseen):
        return []
    return [f"no job {after} is shown in the queue: unless it is there, the chain does not wait for it"]


def live_arrays(live: Iterable[Job]) -> list[int]:
    """Return the array ids of these jobs, in the order of submission."""
    return sorted({job.array_job_id for job in live})


def describe(jobs: Iterable[Job]) -> str:
    """Return the jobs with their owners: `12_1 RUNNING (alice), 12_[2-3%1] PENDING (alice)`."""
    shown = sorted(jobs, key=lambda job: (job.array_job_id, job.is_pending, job.job_id))
    return ", ".join(f"{job.display_id} {job.state} ({job.user})" for job in shown)


def _before(array: int, live: Iterable[Job], unseen: Iterable[Unseen]) -> set[int]:
    """Return `array` and every array it waits for, directly or not."""
    waits = {one.array_job_id: {int(number) for number in one.after if number.isdigit()} for one in unseen}
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
