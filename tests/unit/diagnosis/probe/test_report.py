from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnosis.probe.report import NodeReport, Standing, chosen

NODES = [f"x{number}" for number in range(8)]


def reports(standing: dict[str, Standing]) -> list[NodeReport]:
    return [NodeReport(node=node, standing=standing.get(node, Standing.FINE), hardware="") for node in NODES]


def test_bad_ones_are_left_out_and_suspicious_ones_wait_behind_fine_ones() -> None:
    found = reports({"x1": Standing.BAD, "x3": Standing.SUSPICIOUS})
    assert chosen(NODES, 6, found) == ["x0", "x2", "x4", "x5", "x6", "x7"]
    assert chosen(NODES, 7, found) == ["x0", "x2", "x3", "x4", "x5", "x6", "x7"]
    assert chosen(NODES, 6, ()) == NODES[:6]


def test_slow_ones_are_trained_on_only_for_want_of_others_and_of_them_those_last_that_said_nothing() -> None:
    found = reports({"x0": Standing.SLOW, "x1": Standing.SLOW, "x3": Standing.SUSPICIOUS, "x5": Standing.BAD})
    found[1] = NodeReport(node="x1", standing=Standing.SLOW, hardware="", numbers={"machine.cores": 8.0})
    assert chosen(NODES, 5, found) == ["x2", "x3", "x4", "x6", "x7"]
    assert chosen(NODES, 6, found) == ["x1", "x2", "x3", "x4", "x6", "x7"]
    assert chosen(NODES, 7, found) == ["x0", "x1", "x2", "x3", "x4", "x6", "x7"]


@given(st.lists(st.sampled_from(list(Standing)), min_size=8, max_size=8), st.integers(1, 8))
def test_the_chosen_keep_slurms_order_and_no_bad_one_is_ever_among_them(found: list[Standing], wanted: int) -> None:
    standing = dict(zip(NODES, found, strict=True))
    picked = chosen(NODES, wanted, reports(standing))
    assert picked == [node for node in NODES if node in picked]
    assert Standing.BAD not in {standing[node] for node in picked}
    assert len(picked) == min(wanted, sum(one != Standing.BAD for one in found))
    worst = max(standing[node].rank for node in picked) if picked else 0
    assert {node for node in NODES if standing[node].rank < worst} <= set(picked)
