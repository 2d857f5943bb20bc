"""One node that all others wait for, among ranks whose times have noise of their own."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest

from opsctl.watch.detector import Settings
from opsctl.watch.detectors.slow_node import DETECTOR, _middle_without, slow_nodes
from opsctl.watch.snapshot import Snapshot
from tests.unit.watch.jobs import NOW
from trainer.formats.node_samples import RankTiming


def timed(
    nodes: int,
    factor: Callable[[int, int], float],
    stages: int = 1,
    stretches: int = 6,
    noise: float = 0.01,
    step_s: float = 40.0,
    ranks: int = 8,
) -> list[RankTiming]:
    """factor(node, stretch) times what the stage takes; every node holds ranks of one stage, as pipelines lie."""
    chance = random.Random(0)
    return [
        RankTiming(
            rank=node * ranks + local,
            stage=node % stages,
            iteration=10 * (stretch + 1),
            iterations=10,
            own_s=20.0 * (1 + node % stages) * factor(node, stretch) * chance.gauss(1.0, noise),
            step_s=step_s,
            node=f"n{node}",
        )
        for stretch in range(stretches)
        for node in range(nodes)
        for local in range(ranks)
    ]


@pytest.mark.parametrize(
    ("name", "timings", "expected"),
    [
        ("all alike", timed(48, lambda *_: 1.0), []),
        ("one of 48 by 7 %", timed(48, lambda node, _: 1.07 if node == 17 else 1.0), ["n17"]),
        ("one of 48 by 3 %", timed(48, lambda node, _: 1.03 if node == 17 else 1.0), []),
        ("two of 48, the slower first", timed(48, lambda node, _: {3: 1.3, 9: 1.6}.get(node, 1.0)), ["n9", "n3"]),
        ("stages differ by design", timed(48, lambda *_: 1.0, stages=12), []),
        ("one in a stage of four", timed(48, lambda node, _: 1.2 if node == 5 else 1.0, stages=12), ["n5"]),
        ("one of two by a half", timed(2, lambda node, _: 1.5 if node == 1 else 1.0), ["n1"]),
        ("one of two by a fifth", timed(2, lambda node, _: 1.2 if node == 1 else 1.0), []),
        ("one that is slow now and then", timed(48, lambda node, s: 2.0 if node == 1 and s != 3 else 1.0), []),
        ("nodes that differ widely anyhow", timed(48, lambda node, _: 1.0 + node / 48), []),
        ("too little yet", timed(48, lambda node, _: 2.0 if node == 1 else 1.0, stretches=4), []),
        ("too short yet", timed(48, lambda node, _: 2.0 if node == 1 else 1.0, step_s=0.1), []),
        ("a single node", timed(1, lambda *_: 1.0), []),
        ("nothing", [], []),
    ],
)
def test_the_node_that_all_wait_for_is_named_and_no_other(
    name: str, timings: list[RankTiming], expected: list[str]
) -> None:
    assert [one.node for one in slow_nodes(timings, 5.0)] == expected


def test_a_finding_has_the_numbers_and_what_to_type() -> None:
    timings = tuple(timed(4, lambda node, _: 1.5 if node == 2 else 1.0, noise=0.0))
    (found,) = DETECTOR.find(Snapshot(NOW, timings=timings), Settings("demo", "us"))
    assert found.key == "slow_node:n2" and "opsctl exclude add n2" in found.todo
    assert "compute 3 s an iteration, 1.50 times the 2 s of the others (3 nodes), iterations 20 to 60" in found.text


def test_a_node_whose_lines_are_missing_in_a_stretch_is_not_judged_by_it() -> None:
    timings = timed(8, lambda node, _: 1.5 if node == 2 else 1.0, stretches=9)
    torn = [one for one in timings if not (one.node == "n2" and one.iteration >= 80)]
    assert [one.node for one in slow_nodes(torn, 5.0)] == ["n2"]


@pytest.mark.parametrize("many", [2, 3, 4, 7, 8])
def test_the_others_median_is_that_of_all_but_one(many: int) -> None:
    chance = random.Random(many)
    times = [round(chance.uniform(1.0, 1.4), 1) for _ in range(many)]  # with some alike
    for place, own in enumerate(times):
        others = times[:place] + times[place + 1 :]
        assert _middle_without(sorted(times), own) == pytest.approx(statistics.median(others))


def test_a_slow_node_of_a_thousand_is_found_in_one_look() -> None:
    timings = timed(1000, lambda node, _: 1.2 if node == 617 else 1.0, stretches=5, ranks=1)
    assert [one.node for one in slow_nodes(timings, 5.0)] == ["n617"]
