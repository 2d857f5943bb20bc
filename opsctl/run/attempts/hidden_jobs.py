"""What others may have in the queue where Slurm shows nobody's jobs but one's own (PrivateData=jobs)."""

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

#: Stands where "none" would, wherever only one's own jobs are shown.
CANNOT_SEE = "cannot see the jobs of others here"


@dataclass(frozen=True)
class Unseen:
    """Somebody else's chain that is not known to have ended, and whose jobs cannot be seen."""

    array_job_id: int  # 0: of a submission that was cut off, and that Slurm may have
    user: str
    after: tuple[str, ...] = ()  # the job ids that it waits for
    runs_since_attempt: int | None = None  # the number of its open attempt


def unseen(
    chains: Sequence[Chain], attempts: Callable[[], Sequence[Attempt]], queue: Sequence[Job], slurm: SlurmReader
) -> tuple[Unseen, ...]:
    """Return others' chains that may be queued though Slurm hides their jobs. `attempts` and Slurm are asked only if
    records name one. Raises SlurmUnreachable.
    """
    if sees_others(queue):
        return ()
    found = [one for one in may_be_queued(chains, attempts()) if one.user != account_name()]
    return tuple(found) if found and slurm.hides_others_jobs() else ()


def sees_others(queue: Sequence[Job]) -> bool:
    """Whether `queue`, all that Slurm shows, has a job of somebody else: who is shown one is shown all."""
    me = account_name()
    return any(job.user != me for job in queue)


def may_be_queued(chains: Sequence[Chain], attempts: Sequence[Attempt]) -> list[Unseen]:
    """The chains, everybody's, that records do not show to have ended: what runs, or may, without its task's attempt.

    A chain has ended when each of its tasks had an attempt that ended, when its brake held, which cancels the rest, or
    when a task began that waited for all of it. A task that was cancelled before it began leaves no record.
    """
    begun = {(attempt.array_job_id or attempt.job_id) for attempt in attempts}
    waited_for = {int(one) for chain in chains if chain.chain in begun for one in chain.after if one.isdigit()}
    opened = {(attempt.array_job_id or attempt.job_id): attempt for attempt in attempts if attempt.is_open}
    found = {
        chain.chain: Unseen(chain.chain, chain.user, chain.after, _number(opened.get(chain.chain)))
        for chain in chains
        if chain.chain not in waited_for and not _has_ended(chain, attempts)
    }
    for array, attempt in opened.items():
        found.setdefault(array, Unseen(array, attempt.user, (), attempt.number))
    return [found[array] for array in sorted(found)]


def describe(found: Iterable[Unseen]) -> str:
    """Whose they are: `chain 12 of bob, chain 20 of ann`."""
    return ", ".join(
        f"{f'chain {one.array_job_id}' if one.array_job_id else 'a submission that was cut off'} "
        f"of {one.user or 'somebody'}"
        for one in found
    )


def _has_ended(chain: Chain, attempts: Sequence[Attempt]) -> bool:
    """Whether it was braked, or the last attempt of each task is closed and its job not back in the queue."""
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


def _number(attempt: Attempt | None) -> int | None:
    return attempt.number if attempt else None
