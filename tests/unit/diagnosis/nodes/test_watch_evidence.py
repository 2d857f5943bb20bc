"""What a look at a run puts on record against its nodes, and what comes of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from opsctl.diagnosis.nodes.judging import judge
from opsctl.diagnosis.nodes.node_evidence import NodeEvidence
from opsctl.diagnosis.nodes.policy import Policy
from opsctl.diagnosis.nodes.watch_evidence import slow_evidence

BEGAN = datetime(2026, 11, 1, tzinfo=UTC)
PARTITION = [f"n{place}" for place in range(60)]


@pytest.mark.parametrize(("ratio", "is_excluded"), [(1.035, False), (1.2, True)])
def test_a_node_that_is_hardly_slower_is_told_and_never_excluded_for_it_however_often(
    ratio: float, is_excluded: bool
) -> None:
    known: list[NodeEvidence] = []
    for number in range(30):
        at = BEGAN + timedelta(hours=4 * number)
        line = slow_evidence("n0", ratio, "slow", f"a{number}", at, known)
        known += [line] if line is not None else []
    assert bool(judge(known, [], at, PARTITION, Policy())) == is_excluded


def test_a_node_that_becomes_slower_within_an_attempt_is_put_on_record_then_and_once() -> None:
    assert slow_evidence("n0", 1.035, "slow", "a", BEGAN, []) is None
    line = slow_evidence("n0", 1.3, "slow", "a", BEGAN, [])
    assert line is not None
    assert slow_evidence("n0", 1.4, "slow", "a", BEGAN, [line]) is None
