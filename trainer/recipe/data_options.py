"""The options that name the data, and the form of their weights."""

from __future__ import annotations

import math

#: The options of a file's documents that `--split` divides by its three shares.
SPLITS = ("train", "valid", "test")


def weighted_key(split: str) -> str:
    """Return the key of the option with the groups of `split`: "NAME: WEIGHT START:END PREFIX, ..."."""
    return f"{split}_weighted_split_paths"


def weighted_file_key(split: str) -> str:
    """Return the key of the option with the file of the groups of `split`."""
    return f"{weighted_key(split)}_path"


def is_number(value: object) -> bool:
    """Return True if `value`, a number or text in `--data-path`, has the form of a weight and is no prefix."""
    return _number(value) is not None


def weight(value: object) -> float | None:
    """Return the weight as a number; None if it is not finite and above 0."""
    number = _number(value)
    return number if number is not None and 0 < number < math.inf else None


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
