"""Verdicts on the measurements of a real probe on a busy machine.

`measured_52.json`: 52 nodes of a local cluster on one host of two cores under ten times their load, probed one after
another (November 2026). On node17 products were made wrong, on node34 each was computed twenty times. No two nodes
tested their network: that noise is assumed, as in `made_answers`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from opsctl.diagnosis.probe.report import Standing
from opsctl.diagnosis.probe.verdict import Expected, Judgement, judge
from tests.unit.diagnosis.probe.made_answers import answers

LIAR, SLOW = 16, 33
MEASURED: list[dict[str, float]] = list(json.loads((Path(__file__).parent / "measured_52.json").read_text()).values())
GOOD = [one for place, one in enumerate(MEASURED) if place not in (LIAR, SLOW)]


def judged(nodes: list[dict[str, float]]) -> Judgement:
    numbers: dict[int, dict[tuple[str, str], float]] = {}
    for place, one in enumerate(nodes):
        numbers[place] = {(name.split(".")[0], name.split(".")[1]): value for name, value in one.items()}
    return judge(answers(len(nodes), numbers=dict(numbers)), Expected())


def places(found: Judgement, standing: Standing) -> list[int]:
    return [place for place, one in enumerate(found.nodes) if one.standing == standing]


def test_of_52_measured_nodes_the_lying_and_the_slow_one_are_named_and_no_other_is() -> None:
    found = judged(MEASURED)
    assert (places(found, Standing.BAD), places(found, Standing.SLOW)) == ([LIAR], [SLOW])
    assert len(places(found, Standing.SUSPICIOUS)) <= 1
    reason = found.nodes[SLOW].reasons[0]
    assert reason.measure == "products.fp32_gflops" and "1.11 GFLOP/s" in reason.words and "19.4" in reason.words


@pytest.mark.parametrize("count", [3, 4, 6, 8, 32])
def test_of_good_nodes_of_a_busy_machine_hardly_any_is_called_slow_however_few_they_are(count: int) -> None:
    chance, rounds, accused = random.Random(count), 600 // count, 0
    for _ in range(rounds):
        found = judged(chance.sample(GOOD, count))
        assert places(found, Standing.BAD) == []
        accused += len(places(found, Standing.SLOW))
    assert accused <= 2, f"{accused} of {rounds * count}"


@pytest.mark.parametrize("place", range(0, 50, 7))
def test_a_node_that_is_twenty_times_slower_is_found_at_every_place_through_that_noise(place: int) -> None:
    slower = {**GOOD[place], "products.fp32_gflops": GOOD[place]["products.fp32_gflops"] / 20}
    found = judged([*GOOD[:place], slower, *GOOD[place + 1 :]])
    assert places(found, Standing.SLOW) == [place] and places(found, Standing.BAD) == []
