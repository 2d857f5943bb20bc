"""Ranges of iterations that options name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import missing
from tests.unit.trainer.recipe.test_options import small
from trainer.recipe.options import OptionsError, parse
from trainer.recipe.schedule import IterationRange, SkippedIterations, shown_iterations

RANGES = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 15)), min_size=1, max_size=6)


def skipped(**options: Any) -> SkippedIterations:
    nothing = {"train_range_to_skip": None, "skip_train_iteration_range": None}
    return SkippedIterations.of({**nothing, **options})


@given(RANGES)
def test_both_options_skip_what_lies_between_the_ends_with_both_ends_whatever_the_order(
    ranges: list[tuple[int, int]],
) -> None:
    ends = [(first, first + more) for first, more in ranges]
    pairs = skipped(train_range_to_skip=[number for one in ends for number in one])
    words = skipped(skip_train_iteration_range=[f"{first}-{last}" for first, last in reversed(ends)])
    expected = {n for first, last in ends for n in range(first, last + 1)}
    for found in (pairs, words):
        assert {n for n in range(1, 100) if found.at(n) is not None} == expected


def test_the_options_may_be_mixed_and_say_who_asked() -> None:
    both = skipped(train_range_to_skip=[25, 30], skip_train_iteration_range=["10-20"])
    assert both.at(10) == IterationRange(10, 20, "--skip-train-iteration-range")
    assert both.at(30) == IterationRange(25, 30, "--train-range-to-skip")
    assert both.at(21) is None and skipped().at(1) is None


@pytest.mark.parametrize(
    ("given_words", "facts"),
    [
        ("--train-range-to-skip 10 20 25", ["--train-range-to-skip 10 20 25"]),
        ("--train-range-to-skip 20 10", ["--train-range-to-skip 20 10"]),
        ("--train-range-to-skip 0 10", ["--train-range-to-skip 0", "1"]),
        ("--skip-train-iteration-range 20-10", ["20-10", "10-20"]),
        ("--skip-train-iteration-range 5-9 7", ["--skip-train-iteration-range 7", "FIRST-LAST"]),
        ("--skip-train-iteration-range 0-9", ["0-9", "1"]),
        ("--log-tokens 5", ["--log-tokens 5", "FIRST:LAST"]),
        ("--log-tokens 5:3", ["--log-tokens 5:3", "3:5"]),
    ],
)
def test_what_is_no_range_is_refused_with_both_values(given_words: str, facts: list[str]) -> None:
    with pytest.raises(OptionsError) as refused:
        parse([*small(), *given_words.split()], 1)
    assert not missing(str(refused.value), *facts)
    assert "\n" not in str(refused.value)


def test_the_shown_iterations_have_both_ends() -> None:
    assert shown_iterations({"log_tokens": "2:3"}) == IterationRange(2, 3, "--log-tokens")
    assert shown_iterations({"log_tokens": None}) is None
