"""Which nodes an attempt died of, as far as that is sure enough to go by. Pure."""

from __future__ import annotations

from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.verdict import Cause, Verdict

#: What a training dies of that another node spares it, where triage is this sure of the node.
_OF_A_NODE = frozenset(
    {Cause.GPU_ERROR, Cause.GPU_ECC, Cause.GPU_LOST, Cause.NODE_FAILURE, Cause.NETWORK, Cause.NCCL, Cause.SHM}
)
_SURE = 0.6


#: Of those, what is the node's own wherever it is said. What a network or a collective dies of is said by one rank now
#: and by another next time, and a container without shared memory has none anywhere.
_OF_ITS_HARDWARE = frozenset({Cause.GPU_ERROR, Cause.GPU_ECC, Cause.GPU_LOST, Cause.NODE_FAILURE})


def struck(ended: Attempt, of_hardware: bool = False) -> frozenset[str]:
    """The nodes that Slurm lost under it, and the one that triage is sure of; empty where it died of none.

    of_hardware: only as far as the next attempt elsewhere is not bound to end alike.
    """
    causes = _OF_ITS_HARDWARE if of_hardware else _OF_A_NODE
    lost = ended.lost_nodes if ended.reason == Ending.NODE_FAILURE else ()
    verdict = ended.verdict
    return frozenset(filter(None, (*lost, verdict.node if verdict is not None and _is_of(causes, verdict) else "")))


def _is_of(causes: frozenset[Cause], verdict: Verdict) -> bool:
    return verdict.cause in causes and not verdict.user_fault and verdict.confidence >= _SURE
