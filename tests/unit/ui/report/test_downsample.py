"""Long columns, thinned."""

from __future__ import annotations

import math
from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.ui.report import rows as rows_module
from opsctl.ui.report.rows import COLUMNS, SHAPES, TAIL, Rows, kept


def test_a_short_column_stays_whole() -> None:
    assert kept([array("d", range(100))], 100) == list(range(100))


@given(st.integers(0, 1_999), st.sampled_from([-1e6, 1e6]))
def test_one_odd_value_is_kept_wherever_it_is_and_the_end_is_whole(place: int, value: float) -> None:
    column = array("d", [math.sin(number / 9) for number in range(2_000)])
    column[place] = value
    places = kept([column], 400, tail=100)
    assert place in places and places[-100:] == list(range(1_900, 2_000))
    assert len(places) <= 401 and places == sorted(set(places)) and places[0] == 0


def test_what_is_not_known_hides_no_extreme() -> None:
    column = array("d", [math.nan] * 5000)
    column[1234] = 7.0
    assert 1234 in kept([column], 500, tail=100)


def test_what_is_asked_for_is_kept() -> None:
    assert {77, 4321} <= set(kept([array("d", bytes(8 * 9000))], 100, tail=10, always=[77, 4321, 9_000_000, -1]))


def test_rows_of_a_log_without_end_are_thinned_and_keep_extremes_counts_and_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows_module, "MOST_ROWS", 3 * TAIL)
    rows, count = Rows(), 20 * TAIL
    places = {name: COLUMNS.index(name) for name in ("iteration", "trained", *SHAPES)}
    spikes = {777: 50.0, 41_000: 60.0}
    for iteration in range(1, count + 1):
        values: list[float | None] = [None] * (len(COLUMNS) - 1)
        values[places["iteration"]], values[places["trained"]] = iteration, 1
        values[places["loss"]] = spikes.get(iteration, 2 + math.sin(iteration))
        rows.add(values)
    assert len(rows) <= 3 * TAIL and rows.lines == count
    assert sum(rows.column("trained")) == count
    losses = dict(zip(rows.column("iteration"), rows.column("loss"), strict=True))
    assert {at: losses[at] for at in spikes} == spikes
    assert [*rows.column("iteration")[-TAIL:]] == [*range(count - TAIL + 1, count + 1)]
    assert [*rows.column("iteration")] == sorted(losses)
    assert max(later - earlier for earlier, later in pairwise(losses)) < count / 100  # no part is lost
    gone = rows.cut(count // 2)
    assert rows.newest("iteration") < count // 2 <= gone.column("iteration")[0]
