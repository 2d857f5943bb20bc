"""Numbers drawn as bars."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opsctl.ui.status.text import BARS, progress_bar, sparks


def test_a_rise_is_a_staircase_and_a_fall_the_same_backwards() -> None:
    rise = [float(n) for n in range(8)]
    assert sparks(rise, 8) == BARS
    assert sparks(rise[::-1], 8) == BARS[::-1]


def test_many_values_are_drawn_as_means_of_as_many_each() -> None:
    assert sparks([0.0, 2.0, 9.0, 11.0], 2) == BARS[0] + BARS[-1]


def test_what_is_not_known_is_blank_and_what_does_not_change_is_level() -> None:
    assert sparks([1.0, None, 1.0], 3) == f"{BARS[4]} {BARS[4]}"
    assert sparks([None, None], 2) == "" and sparks([], 5) == "" and sparks([1.0], 0) == ""


def test_a_single_outlier_does_not_flatten_the_rest() -> None:
    drawn = sparks([1e6] + [float(n % 8) for n in range(99)], 100)
    assert drawn[0] == BARS[-1] and set(drawn) == set(BARS)


@given(st.lists(st.none() | st.floats(-1e30, 1e30)), st.integers(0, 90))
def test_sparks_are_never_wider_than_asked(values: list[float | None], width: int) -> None:
    assert len(sparks(values, width)) <= min(width, len(values))


def test_a_bar_is_full_only_when_all_is_done() -> None:
    assert [progress_bar(share, 4) for share in (-1, 0, 0.5, 0.999, 1, 7)] == [
        "░░░░",
        "░░░░",
        "██░░",
        "███░",
        "████",
        "████",
    ]
