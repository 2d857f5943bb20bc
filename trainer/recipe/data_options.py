"""The options that say what the data is, by name, and what counts as a weight in them."""

from __future__ import annotations

import math

#: Which of a file's documents each of these gets is `--split`'s three shares.
SPLITS = ("train", "valid", "test")


def weighted_key(split: str) -> str:
    """The key of the option with the groups of `split`: "NAME: WEIGHT START:END PREFIX, ..."."""
    return f"{split}_weighted_split_paths"


def weighted_file_key(split: str) -> str:
    """The key of the option with the file that holds the groups of `split`."""
    return f"{weighted_key(split)}_path"


def is_number(value: object) -> bool:
    """Whether `value`, a number or text in `--data-path`, is written as a weight: then it is none of the prefixes."""
    return _number(value) is not None


def weight(value: object) -> float | None:
    """The weight that a number or text means; None where that is no finite number above 0."""
    number = _number(value)
    return number if number is not None and 0 < number < math.inf else None


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
