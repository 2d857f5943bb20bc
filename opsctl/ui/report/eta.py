"""When a training will be done, with an interval, by what it did per stretch of wall time so far. Pure.

Stretches of the past, waits and repeats included, are drawn again and again until what is left is done: the middle of
the draws is the word, nine of ten of them the interval. What never happened so far, no draw has.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

DAY_S = 86_400.0
#: Draws; stretches of a short training; at most so many stretches back are looked at; and ahead.
_DRAWS, _STRETCHES, _NEWEST, _MOST = 400, 24, 28, 3_000
#: Of a stretch fewer than this tell nothing.
_LEAST = 4


@dataclass(frozen=True)
class Arrival:
    """Seconds from now: the middle, and between what nine draws of ten are."""

    likely_s: float
    early_s: float
    late_s: float


def arrival(times_s: Sequence[float], done: Sequence[float], left: float, now_s: float) -> Arrival | None:
    """When `left` more will be done; None where the past is too short to tell.

    times_s: ascending; done: how much was done by then, also ascending; both from the same lines. now_s: until when
    the past goes, at least the last of `times_s`.
    """
    if left <= 0:
        return Arrival(0.0, 0.0, 0.0)
    if len(times_s) < 2 * _LEAST or times_s[-1] <= times_s[0]:
        return None
    length_s = min(DAY_S, (now_s - times_s[0]) / _STRETCHES)
    rates = _per_stretch(times_s, done, max(now_s, times_s[-1]), length_s)
    if len(rates) < _LEAST or sum(rates) <= 0:
        return None
    if left / (sum(rates) / len(rates)) > _MOST:
        return None
    chance = random.Random(1)
    draws = sorted(_one_draw(rates, left, chance) for _ in range(_DRAWS))
    return Arrival(*(draws[int(share * (_DRAWS - 1))] * length_s for share in (0.5, 0.05, 0.95)))


def _per_stretch(times_s: Sequence[float], done: Sequence[float], end_s: float, length_s: float) -> list[float]:
    """How much was done in each of the newest stretches, oldest first."""
    count = min(_NEWEST if length_s == DAY_S else _STRETCHES, int((end_s - times_s[0]) / length_s + 1e-9))
    amounts = [_done_by(times_s, done, end_s - number * length_s) for number in range(count, -1, -1)]
    return [later - earlier for earlier, later in pairwise(amounts)]


def _done_by(times_s: Sequence[float], done: Sequence[float], at_s: float) -> float:
    place = bisect_right(times_s, at_s)
    return done[place - 1] if place else done[0]


def _one_draw(rates: Sequence[float], left: float, chance: random.Random) -> float:
    """Stretches, the last one by its share."""
    stretches = 0.0
    while stretches < _MOST:
        rate = chance.choice(rates)
        if rate >= left:
            return stretches + left / rate
        left -= rate
        stretches += 1
    return stretches
