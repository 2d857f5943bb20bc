"""Which way a family is computed by, from what was measured. Pure.

The first way in the order of preference stays unless another that is there was measured faster by more than a few
hundredths: less is noise, and what is chosen should not change from one measurement to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer.formats.attempt.kernels import FamilyTimes

#: What one way may take longer than another and still be taken.
NOISE = 1.03
#: In doublings of the width: what is faster in small may be slower in large.
FARTHEST = 1.0
#: Measured beside the others and never taken: torch compiles it when it first sees a shape, and trainings compile
#: nothing.
COMPILED = "torch.compile"


@dataclass(frozen=True)
class Decision:
    """The way that is taken, and why where that is for its time; beside: a faster one that cannot be."""

    way: str
    why: str | None = None
    beside: str | None = None


def times_for(
    measured: Iterable[FamilyTimes], family: str, kind: str, precision: str, columns: int
) -> FamilyTimes | None:
    """Of the size that comes nearest; None where none near it was measured of the family in that precision."""

    def apart(one: FamilyTimes) -> float:
        return abs(math.log2(one.columns / columns))

    alike = [one for one in measured if (one.family, one.kind, one.precision) == (family, kind, precision)]
    return min((one for one in alike if apart(one) <= FARTHEST), key=apart, default=None)


def decided(ways: Sequence[str], times: FamilyTimes | None, device: str) -> Decision:
    """Among `ways`, the preferred one first. A way without a time is neither better nor worse than others."""
    first = ways[0]
    if times is None or first not in times.seconds:
        return Decision(first)
    seconds = {way: times.seconds[way] for way in ways if way in times.seconds}
    best = min(seconds, key=lambda way: seconds[way])
    taken = best if seconds[first] > NOISE * seconds[best] else first
    where = f"on {device}, measured {times.measured_at[:10]}"
    why = None if taken == first else f"{seconds[first] / seconds[best]:.2f}x as fast as {first} {where}"
    compiled = times.seconds.get(COMPILED, math.inf)
    beside = None
    if seconds[taken] > NOISE * compiled:
        ratio = seconds[taken] / compiled
        beside = f"{COMPILED}: {ratio:.2f}x as fast {where}, but it compiles in the training"
    return Decision(taken, why, beside)
