"""What a regular look at a run adds to the evidence about its nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from opsctl.diagnosis.nodes.node_evidence import NodeEvidence
from opsctl.diagnosis.nodes.policy import SLOW

#: How sure it is that a node that computes so many times as long as others is to blame: by half more, surely.
_SURE_RATIO, _LEAST, _MOST = 1.5, 0.5, 0.95
#: Less slow than this nodes are for good, too: attempt by attempt it would add up, and keep a run off healthy ones.
_LEAST_RATIO = 1.05


def slow_evidence(
    node: str, ratio: float, words: str, attempt: str, at: datetime, known: Iterable[NodeEvidence]
) -> NodeEvidence | None:
    """A line about a slow node; None where it is hardly slow, or where one about this attempt is among `known`."""
    if ratio < _LEAST_RATIO or any(one.node == node and one.kind == SLOW and one.attempt == attempt for one in known):
        return None
    confidence = _LEAST + (_MOST - _LEAST) * min(1.0, max(0.0, (ratio - 1.0) / (_SURE_RATIO - 1.0)))
    return NodeEvidence(
        node=node, kind=SLOW, at=at, words=words, confidence=round(confidence, 2), attempt=attempt, by="watch"
    )
