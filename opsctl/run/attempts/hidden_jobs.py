"""Jobs that others may have in the queue if Slurm shows only the caller's own (PrivateData=jobs)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from opsctl.core.account import account_name
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.state.chains import Chain
from opsctl.slurm.arrays import array_problem, count_tasks
from opsctl.slurm.client import SlurmReader
from opsctl.slurm.types import Job

#: Replaces "none" if only the caller's own jobs are visible.
CANNOT_SEE = "cannot see other users' jobs"


@dataclass(frozen=True)
class Unseen:
    """A chain of another user that may not have ended, and whose jobs are not visible."""

    array_job_id: int  # 0: an interrupted submission, which Slurm may have accepted
    user: str
    after: tuple[str, ...] = ()  # job ids that it depends on
    runs_since_attempt: int | None = None  # number of its open attempt


def unseen(
    chains: Sequence[Chain], attempts: Callable[[], Sequence[Attempt]], queue: Sequence[Job], slurm: SlurmReader
) -> tuple[Unseen, ...]:
    """Return others' chains that may be queued although Slurm hides their jobs. Asks Slurm only if records name one.
    Raises SlurmUnreachable.
    """
    if sees_others(queue):
        return ()
    found = [one for one in may_be_queued(chains, attempts()) if one.user != account_name()]
    return tuple(found) if found and slurm.hides_others_jobs() else ()


def sees_others(queue: Sequence[Job]) -> bool:
    """Return True if `queue`, all jobs that Slurm shows, has another user's job: then all jobs are visible."""
    me = account_name()
    return any(job.user != me for job in queue)


def may_be_queued(chains: Sequence[Chain], attempts: Sequence[Attempt]) -> list[Unseen]:
    """Return the chains of all users that have not ended according to the records.

    A chain has ended if each of its tasks had an attempt that ended, if its failure limit stopped it, which cancels the
    rest, or if a task began that depended on all of it. A task that was cancelled before its start leaves no record.
    """
    begun = {(attempt.array_job_id or attempt.job_id) for attempt in attempts}
    waited_for = {int(one) for chain in chains if chain.chain in begun for one in chain.after if one.isdigit()}
    opened = {(attempt.array_job_id or attempt.job_id): attempt for attempt in attempts if attempt.is_open}
    numbers = {array: attempt.number for array, attempt in opened.items()}
    found = {
        chain.chain: Unseen(chain.chain, chain.user, chain.after, numbers.get(chain.chain))
        for chain in chains
        if chain.chain not in waited_for and not _has_ended(chain, attempts)
    }
    for array, attempt in opened.items():
        found.setdefault(array, Unseen(array, attempt.user, (), attempt.number))
    return [found[array] for array in sorted(found)]


def describe(found: Iterable[Unseen]) -> str:
    """Return the chains with their owners: `chain 12 of bob, chain 20 of ann`."""
    return ", ".join(
        f"{f'chain {one.array_job_id}' if one.array_job_id else 'an interrupted submission'} "
        f"of {one.user or 'an unknown user'}"
        for one in found
    )


def _has_ended(chain: Chain, attempts: Sequence[Attempt]) -> bool:
    """Return True if its failure limit stopped it, or if each task's last attempt is closed and not requeued."""
    last = {
        attempt.array_task: attempt
        for attempt in attempts
        if (attempt.array_job_id or attempt.job_id) == chain.chain
        and attempt.chain_submitted_at in (None, chain.submitted_at)
    }
    if any(one.reason == Ending.BRAKE for one in last.values()):
        return True
    ended = [one for one in last.values() if not one.is_open and one.reason != Ending.REQUEUED]
    tasks = 1 if array_problem(chain.array) else count_tasks(chain.array)
    return len(ended) >= tasks
