"""The known name closest to an unknown one. Pure."""

from __future__ import annotations

from collections.abc import Iterable

#: The least likeness for a suggestion.
LIKE_ENOUGH = 0.6


def nearest_name(wanted: str, known: Iterable[str], least: float = LIKE_ENOUGH) -> str | None:
    """Return the name of `known` most like `wanted`; None if none reaches the likeness `least`."""
    best = max(known, key=lambda name: likeness(wanted, name), default=None)
    return best if best is not None and likeness(wanted, best) >= least else None


def likeness(one: str, other: str) -> float:
    """Return the likeness of two names by their letters, 0 to 1. `-` counts as `_`."""
    from difflib import SequenceMatcher

    first, second = (name.lower().replace("-", "_") for name in (one, other))
    return SequenceMatcher(None, first, second).ratio()
