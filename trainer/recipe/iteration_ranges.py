"""Stretches of iterations that options name: those that are skipped, and those whose tokens are shown. Pure.

Iterations are counted from 1 over the whole training and both ends are in, so that a restart moves no range.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PAIRS, WORDS, SHOWN = "--train-range-to-skip", "--skip-train-iteration-range", "--log-tokens"


@dataclass(frozen=True, order=True)
class IterationRange:
    """The iterations from `first` to `last`, both in; `why` is who asked for it."""

    first: int
    last: int
    why: str = ""

    def __contains__(self, iteration: int) -> bool:
        return self.first <= iteration <= self.last

    def words(self) -> str:
        """`iteration 10`, `iterations 10 to 20`."""
        return f"iteration {self.first}" if self.first == self.last else f"iterations {self.first} to {self.last}"


@dataclass(frozen=True)
class SkippedIterations:
    """All ranges that are skipped, in whatever order; they may overlap."""

    ranges: tuple[IterationRange, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SkippedIterations:
        """As both options ask for it. Raises ValueError, in one line with both values, for what is no range."""
        return cls((*_of_pairs(options["train_range_to_skip"] or ()), *_of_words(options)))

    def at(self, iteration: int) -> IterationRange | None:
        """The range that has the iteration, None where it is trained; of several the one that goes on longest."""
        return max((one for one in self.ranges if iteration in one), key=lambda one: one.last, default=None)


def shown_iterations(options: Mapping[str, Any]) -> IterationRange | None:
    """Those whose tokens --log-tokens asks for, None without it. Raises ValueError as `SkippedIterations.of`."""
    word = options["log_tokens"]
    return None if word is None else _of_word(SHOWN, word, ":")


def _of_pairs(numbers: Sequence[int]) -> list[IterationRange]:
    if len(numbers) % 2:
        raise ValueError(
            f"{PAIRS} {' '.join(map(str, numbers))}: {len(numbers)} numbers are no pairs: {numbers[-1]} begins a range "
            "without an end; give FIRST LAST FIRST LAST ..."
        )
    return [_checked(PAIRS, first, last, " ") for first, last in zip(numbers[::2], numbers[1::2], strict=True)]


def _of_words(options: Mapping[str, Any]) -> list[IterationRange]:
    return [_of_word(WORDS, word, "-") for word in options["skip_train_iteration_range"] or ()]


def _of_word(option: str, word: str, between: str) -> IterationRange:
    match = re.fullmatch(rf"([0-9]{{1,18}}){between}([0-9]{{1,18}})", word)
    if match is None:
        raise ValueError(f"{option} {word}: give FIRST{between}LAST, two iterations")
    return _checked(option, int(match[1]), int(match[2]), between)


def _checked(option: str, first: int, last: int, between: str) -> IterationRange:
    given = f"{option} {first}{between}{last}"
    if first < 1:
        raise ValueError(f"{given}: iterations are counted from 1, and the range is {first} to {last}")
    if first > last:
        raise ValueError(f"{given}: it begins at {first}, after its end at {last}; give {last}{between}{first}")
    return IterationRange(first, last, option)
