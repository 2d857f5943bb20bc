"""Statistics that a few odd values do not move. Pure; the standard library's would take 2 ms to import."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: Of the median absolute deviation, to be the standard deviation of what is normally distributed.
NORMAL = 1.4826
#: Points that `slope` looks at: all pairs of them.
_MOST_POINTS = 48


def quantile(values: Iterable[float], share: float) -> float:
    """The value that `share` of `values` are not above, between two of them where it falls there. Needs one value."""
    known = sorted(values)
    place = share * (len(known) - 1)
    low = int(place)
    high = min(low + 1, len(known) - 1)
    return known[low] + (known[high] - known[low]) * (place - low)


def middle(values: Iterable[float]) -> float:
    """The median. Needs one value."""
    return quantile(values, 0.5)


def spread(values: Sequence[float]) -> float:
    """The standard deviation as the median absolute deviation tells it. Needs one value."""
    centre = middle(values)
    return NORMAL * middle(abs(value - centre) for value in values)


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """How much y grows for each unit of x: the median over all pairs (Theil-Sen). None of fewer than two moments."""
    step = max(1, -(-len(points) // _MOST_POINTS))
    few = points[::-1][::step]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for place, later in enumerate(few)
        for earlier in few[place + 1 :]
        if later[0] != earlier[0]
    ]
    return middle(slopes) if slopes else None
