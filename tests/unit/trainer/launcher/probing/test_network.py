"""Rounds of pairs, and nodes that really talk."""

from __future__ import annotations

import pytest

from trainer.launcher.probing.network import latest_s, partner


@pytest.mark.parametrize("nodes", [*range(2, 10), 52, 53])
def test_in_one_round_fewer_than_seats_everybody_meets_everybody_once(nodes: int) -> None:
    rounds = nodes - 1 + nodes % 2
    for node in range(nodes):
        met = [other for turn in range(rounds) if (other := partner(node, turn, nodes)) is not None]
        assert sorted(met) == [other for other in range(nodes) if other != node]


@pytest.mark.parametrize("nodes", [2, 3, 8, 53])
def test_partners_agree_on_each_other_in_every_round(nodes: int) -> None:
    for turn in range(nodes - 1 + nodes % 2):
        for node in range(nodes):
            other = partner(node, turn, nodes)
            assert other is None or partner(other, turn, nodes) == node


@pytest.mark.parametrize(
    ("took_s", "until_s"),
    [(3.0, 11.0), (0.5, 6.0), (12.0, 18.0)],
    ids=["as long again", "5 s at least", "within its own limit"],
)
def test_the_first_node_waits_for_those_that_a_slow_one_holds_up(took_s: float, until_s: float) -> None:
    assert latest_s(100.0, 100.0 + took_s, 20.0) == 100.0 + until_s
