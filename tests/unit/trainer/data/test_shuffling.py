"""Shuffling in C++ against numpy's own, the state of the generator included."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data import compiled, indices

pytestmark = pytest.mark.usefixtures("built")


@pytest.fixture(autouse=True, scope="module")
def however_few() -> Any:
    """Few values go to numpy otherwise."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(indices, "_FEWEST", 0)
        yield


def state_of(random: np.random.RandomState) -> tuple[Any, ...]:
    kind, key, *rest = random.get_state(legacy=True)
    return kind, list(key), *rest


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
    st.integers(0, 700),
    st.sampled_from([np.int32, np.uint32, np.int64]),
)
def test_the_permutation_and_what_is_drawn_next_are_numpys(
    counts: list[int], seed: int, drawn_before: int, kind: type[Any]
) -> None:
    theirs, ours = np.random.RandomState(seed), np.random.RandomState(seed)
    for random in (theirs, ours):
        random.bytes(4 * drawn_before)
        random.randn(drawn_before % 2)  # an odd number of normals leaves one kept
    for count in counts:
        expected, found = np.arange(count, dtype=kind), np.arange(count, dtype=kind)
        theirs.shuffle(expected)
        indices.shuffle(found, ours)
        assert found.tolist() == expected.tolist()
        assert state_of(ours) == state_of(theirs)


@pytest.mark.parametrize("count", [65_536, 65_537, 200_003])
def test_many_more_than_are_drawn_ahead(count: int) -> None:
    expected, found = np.arange(count), np.arange(count)
    np.random.RandomState(7).shuffle(expected)
    indices.shuffle(found, np.random.RandomState(7))
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("first", [2**32 - 1, 2**32 + 700, 2**33 + 5, 2**40])
def test_steps_that_take_64_bits_are_swapped_with_what_numpy_draws_for_them(first: int) -> None:
    """No array of so many is made: only what each step of its shuffle would be swapped with, by numpy's own drawing."""
    last = first - 1500
    theirs = np.random.RandomState(3)
    expected = [int(theirs.randint(0, step + 1, dtype=np.uint64)) for step in range(first, last - 1, -1)]
    library = compiled.library()
    assert library is not None
    _, key, position, *_ = state_of(np.random.RandomState(3))
    words, used = np.array(key, np.uint32), ctypes.c_int64(position)
    found = np.empty(first - last + 1, np.uint64)
    places = compiled.address(words), ctypes.addressof(used), compiled.address(found)
    library.shuffle_targets(first, last, *places)
    assert found.tolist() == expected
    assert words.tolist() == state_of(theirs)[1]
