from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnosis.goodput.parts import Part, fitted, scaled

A, B, REST = (Part.TRAINED, ""), (Part.SAVED, ""), (Part.LEFT, "")


def test_what_is_left_of_the_whole_is_the_rest() -> None:
    assert fitted([(A, 60), (B, 10), (A, 5)], 100, REST) == {A: 65, B: 10, REST: 25}


def test_more_than_the_whole_is_scaled_down_to_it() -> None:
    assert fitted([(A, 300), (B, 100), (B, -7)], 100, REST) == {A: 75, B: 25}


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(-5, 10**9)), max_size=6), st.integers(0, 10**9))
def test_nothing_is_made_and_nothing_lost(amounts: list[tuple[tuple[Part, str], int]], whole: int) -> None:
    found = fitted(amounts, whole, REST)
    assert sum(found.values()) == whole and all(ms >= 0 for ms in found.values())
    assert sum(scaled(found, 12_345).values()) == 12_345
