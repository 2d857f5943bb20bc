"""One node that all others wait for, among ranks whose times have noise of their own."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.nodes import _middle_without, slow_node, slow_nodes
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.config.schema import WatchTable
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW
from trainer.formats.attempt.node_samples import RankTiming


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
        ("several stage sizes", timed(48, lambda *_: 1.0, stages=12), []),
        ("one of a stage", timed(48, lambda node, _: 1.2 if node == 5 else 1.0, stages=12), ["n5"]),
        ("one of two by a half", timed(2, lambda node, _: 1.5 if node == 1 else 1.0), ["n1"]),
        ("one of two by a fifth", timed(2, lambda node, _: 1.2 if node == 1 else 1.0), []),
        ("sometimes slow", timed(48, lambda node, s: 2.0 if node == 1 and s != 3 else 1.0), []),
        ("all nodes differ", timed(48, lambda node, _: 1.0 + node / 48), []),
        ("too little yet", timed(48, lambda node, _: 2.0 if node == 1 else 1.0, stretches=4), []),
        ("too short yet", timed(48, lambda node, _: 2.0 if node == 1 else 1.0, step_s=0.1), []),
        ("a single node", timed(1, lambda *_: 1.0), []),
        ("nothing", [], []),
    ],
)
def test_only_the_slow_node_is_named(name: str, timings: list[RankTiming], expected: list[str]) -> None:
    assert [one.node for one in slow_nodes(timings, 5.0)] == expected


def test_a_run_looks_for_nodes_that_are_three_percent_slower_unless_its_file_says_otherwise() -> None:
    snapshot = Snapshot(NOW, timings=tuple(timed(48, lambda node, _: 1.045 if node == 17 else 1.0, noise=0.005)))
    assert [one.subject for one in slow_node.find(snapshot, Settings("demo", "us"))] == ["n17"]
    allowed = Settings("demo", "us", watch=WatchTable(slower_node_percent=6.0))
    assert slow_node.find(snapshot, allowed) == []


@pytest.mark.parametrize(("nodes", "expected"), [(16, []), (18, ["n0"])])
def test_where_few_tell_how_far_nodes_differ_one_has_to_be_farther_off(nodes: int, expected: list[str]) -> None:
    def factor(node: int, _stretch: int) -> float:
        # The others lie two percent apart, by turns: 1.4826 of that is what they differ by. n0 is 4.5 times as far off.
        return 1.0 + 4.5 * 0.02 * 1.4826 if node == 0 else 1.0 + 0.02 * (node % 3 - 1)

    assert [one.node for one in slow_nodes(timed(nodes, factor, noise=0.0), 3.0)] == expected


@pytest.mark.parametrize(("factor", "expected"), [(1.045, []), (1.055, ["n5"])])
def test_among_few_of_a_stage_a_node_is_slow_from_five_percent_on(factor: float, expected: list[str]) -> None:
    timings = timed(48, lambda node, _: factor if node == 5 else 1.0, stages=12, noise=0.0)
    assert [one.node for one in slow_nodes(timings, 3.0)] == expected


@pytest.mark.parametrize("stages", [3, 6, 12])
def test_nodes_of_a_pipeline_that_differ_by_two_percent_for_good_are_not_named_because_they_are_many(
    stages: int,
) -> None:
    named = 0
    for seed in range(50):
        chance = random.Random(seed)
        factors = [chance.gauss(1.0, 0.02) for _ in range(48)]
        timings = timed(48, lambda node, _, own=factors: own[node], stages, 5, noise=0.002, ranks=1)  # type: ignore[misc]
        named += bool(slow_nodes(timings, 3.0))
    assert named <= 2


def test_a_slow_node_of_such_a_pipeline_is_named() -> None:
    chance = random.Random(1)
    factors = [chance.gauss(1.0, 0.02) for _ in range(48)]
    factors[5] = 1.25
    timings = timed(48, lambda node, _: factors[node], stages=12, noise=0.002)
    assert [one.node for one in slow_nodes(timings, 3.0)] == ["n5"]


def test_a_finding_has_the_numbers_and_the_commands_to_type() -> None:
    timings = tuple(timed(4, lambda node, _: 1.5 if node == 2 else 1.0, noise=0.0))
    (found,) = slow_node.find(Snapshot(NOW, timings=timings), Settings("demo", "us"))
    assert found.key == "slow_node:n2" and missing(found.todo, "opsctl exclude add n2") == []
    assert missing(found.text, "n2", "3 s", "1.50 times", "2 s", "3 nodes", "20 to 60") == []


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
