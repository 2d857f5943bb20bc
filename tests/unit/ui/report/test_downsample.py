"""Long columns, thinned."""

from __future__ import annotations

import math
from array import array

from hypothesis import given
from hypothesis import strategies as st

from opsctl.ui.report.rows import kept


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
