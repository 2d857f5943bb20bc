"""Stop chains that make no progress, and the queued chains that would stop for the same reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.verdict import Cause
from opsctl.run.state.chains import Chain, counted_since
from opsctl.slurm.types import Job

#: Causes that another node avoids, if triage has this confidence in the node.
_OF_A_NODE = frozenset(
    {Cause.GPU_ERROR, Cause.GPU_ECC, Cause.GPU_LOST, Cause.NODE_FAILURE, Cause.NETWORK, Cause.NCCL, Cause.SHM}
)
_SURE = 0.6


#: Of these, causes that are certainly the node's. A network or collective error can appear on any rank, and a container
#: without shared memory has none on any node.
_OF_ITS_HARDWARE = frozenset({Cause.GPU_ERROR, Cause.GPU_ECC, Cause.GPU_LOST, Cause.NODE_FAILURE})


def failed_nodes(ended: Attempt, of_hardware: bool = False) -> frozenset[str]:
    """Return the nodes that certainly ended the attempt. of_hardware: only those whose hardware failed."""
    causes = _OF_ITS_HARDWARE if of_hardware else _OF_A_NODE
    lost = ended.lost_nodes if ended.reason == Ending.NODE_FAILURE else ()
    verdict = ended.verdict
    is_sure = verdict is not None and not verdict.user_fault and verdict.confidence >= _SURE
    node = verdict.node if verdict is not None and is_sure and verdict.cause in causes else ""
    return frozenset(filter(None, (*lost, node)))


#: Attempts in a row without a new checkpoint after which a chain stops.
FAILURE_LIMIT = 3
#: Attempts in a row, each ended by another node's hardware, before these count too.
OTHER_NODES = 9
#: Endings that show nothing about the training's health, unless a checkpoint was saved: persons cancel jobs, and Slurm
#: preempts them for other jobs.
_NEUTRAL_REASONS = frozenset(
    {
        *(Ending.KILL_SWITCH, Ending.FINISHED, Ending.OVERTAKEN, Ending.HELD, Ending.BRAKE),
        *(Ending.CANCELLED, Ending.PREEMPTED),
    }
)


def without_progress(attempts: Iterable[Attempt], since: datetime) -> int:
    """Count the attempts in a row, up to the last, that ended after `since` without a new checkpoint.

    Attempts neither count nor break the row if they left because of the kill switch at their start, found the training
    finished, were overtaken by another writer, left the lease to it, were cancelled or were preempted. The same holds
    for attempts that each ended by another node's hardware, as far as triage or Slurm is sure: the next attempt has
    other nodes. On thousands of nodes several in a row are usual, and a stopped chain waits for a person. More than
    OTHER_NODES of them count.
    """
    row = 0
    died_of: set[str] = set()
    for attempt in attempts:
        if attempt.closed_at is None or attempt.closed_at <= since:
            continue
        if attempt.made_checkpoint:
            row = 0
            died_of.clear()
        elif attempt.reason not in _NEUTRAL_REASONS:
            nodes = failed_nodes(attempt, of_hardware=True)
            if not nodes or nodes & died_of or len(died_of) >= OTHER_NODES:
                row += 1
            died_of |= nodes
    return row


def learned_nothing(attempts: Iterable[Attempt], since: datetime) -> bool:
    """Return whether the last attempt after `since` stopped itself; the next would start with the same data."""
    ended = (one for one in attempts if one.closed_at is not None and one.closed_at > since)
    reasons = [one.reason for one in ended if one.reason not in _NEUTRAL_REASONS]
    return reasons[-1:] == [Ending.SKIPPED_ITERATIONS]


def failed_too_often(attempts: Sequence[Attempt], since: datetime) -> bool:
    """Return whether a chain submitted at `since` must stop: three attempts failed, or one stopped itself."""
    return without_progress(attempts, since) >= FAILURE_LIMIT or learned_nothing(attempts, since)


def keeps_losing_the_lease(attempts: Sequence[Attempt], chain: int) -> bool:
    """Return whether the last FAILURE_LIMIT tasks of `chain` all left the lease to another writer."""
    own = [one for one in attempts if (one.array_job_id or one.job_id) == chain][-FAILURE_LIMIT:]
    return len(own) == FAILURE_LIMIT and all(one.reason == Ending.HELD for one in own)


def chains_to_cancel(
    own: Iterable[Job], attempts: Sequence[Attempt], user: str, recorded: Sequence[Chain] = ()
) -> list[int]:
    """Return the arrays of `user`'s pending jobs that the failure limit also stops. recorded: the run's chains. Later
    submissions of a person are kept.
    """
    kept = {one.chain: counted_since(recorded, one.submitted_at) for one in recorded if not one.is_somebodys_word}
    chains = {
        job.array_job_id
        for job in own
        if job.is_pending
        and job.user == user
        and job.submitted_at is not None
        and failed_too_often(attempts, kept.get(job.array_job_id, job.submitted_at))
    }
    return sorted(chains)
