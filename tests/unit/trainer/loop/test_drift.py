"""Messages about ranks whose sums differ."""

from __future__ import annotations

import re

from tests.facts import missing
from trainer.loop.replicas import drift_line, drifts

WEIGHT = ("final_layernorm.bias", 0)


def test_what_all_ranks_hold_alike_is_no_drift() -> None:
    assert drifts([[WEIGHT]] * 4, [[7]] * 4) == []


def test_the_minority_is_named_and_without_one_both_sides_are() -> None:
    def sides(*values: int) -> list[str]:
        (found,) = drifts([[WEIGHT]] * len(values), [[value] for value in values])
        assert not missing(found.words(), "weight", "final_layernorm.bias")
        return re.findall(r"ranks? (\d(?:[ ,andto]+\d)*)", found.words())

    assert sides(7, 7, 8, 7) == ["2", "0, 1 and 3"]
    assert sides(7, 8, 9, 7, 7) == ["1 and 2", "0, 3 and 4"]
    assert sides(7, 8) == ["0", "1"]
    assert sides(1, 1, 1, 2, 2, 2) == ["0 to 2", "3 to 5"]


def test_parts_are_compared_among_themselves() -> None:
    parts = [[("w", rank % 2)] for rank in range(4)]
    assert drifts(parts, [[1], [2], [1], [2]]) == []
    (found,) = drifts(parts, [[1], [2], [1], [3]])
    assert not missing(found.words(), "w", "rank 1", "rank 3")


def test_the_line_is_one_and_counts_what_it_does_not_name() -> None:
    items = [(f"p{number}", 0) for number in range(9)]
    line = drift_line(drifts([items] * 3, [[0] * 9, [0] * 9, [1] * 9]), 20)
    assert not missing(line, "iteration 20", "p2", "rank 2", "ranks 0 and 1", "6 more") and "\n" not in line
