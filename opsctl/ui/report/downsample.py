"""Which points of long columns are kept, so that what is drawn looks the same. Pure."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Sequence

#: Points at the end that are all kept: people zoom in on what is new.
TAIL = 4000


def kept(columns: Sequence[array[float]], most: int, tail: int = TAIL, always: Collection[int] = ()) -> list[int]:
    """Places to keep of columns of one length, in order: about `most`, and those of `always`.

    Before the last `tail` all of it is cut into stretches, and of each the lowest and highest value of every column
    stay: a spike of one line is there at any length.
    """
    count = len(columns[0]) if columns else 0
    if count <= most:
        return list(range(count))
    head = max(0, count - tail)
    places = {0, *range(head, count), *(place for place in always if 0 <= place < count)}
    stretches = max(1, (most - tail) // (2 * len(columns)))
    for column in columns:
        lowest, highest = _without_nan(column[:head], math.inf), _without_nan(column[:head], -math.inf)
        for number in range(stretches):
            begin, end = number * head // stretches, (number + 1) * head // stretches
            if begin < end:
                low, high = lowest[begin:end], highest[begin:end]
                places.add(begin + low.index(min(low)))
                places.add(begin + high.index(max(high)))
    return sorted(places)


def _without_nan(column: array[float], instead: float) -> array[float]:
    return array("d", (value if value == value else instead for value in column))
