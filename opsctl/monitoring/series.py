"""Stretches of the newest iterations, statistics that a few odd values do not move, and jumps of the loss. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from trainer.formats.logs.training_line import TrainingLine

#: A past event is reported for so many more seconds of training, so that an hourly check finds it.
REPORTED_FOR_S = 6 * 3600.0
#: Of the median absolute deviation, to be the standard deviation of what is normally distributed.
NORMAL = 1.4826
#: Points that `slope` looks at: all pairs of them.
_MOST_POINTS = 48
#: Usual lines that say what is usual, how many that needs, and after how many the word is renewed.
USUAL, USUAL_LEAST, RENEWED = 100, 20, 10
#: Above the usual loss by so many of its standard deviations, and by this share of it, is no chance.
DEVIATIONS, SHARE = 8.0, 0.1
#: A single line is reported only if it is above by this share; otherwise two among so many.
ALONE, AMONG = 0.5, 5
#: So many lines in a row at the usual end it.
BACK = 10


def finite(value: float | None) -> float | None:
    """Return the number; None if it is missing or not finite."""
    return value if value is not None and math.isfinite(value) else None


def steps(lines: Sequence[TrainingLine]) -> list[int]:
    """Return how many iterations each line covers: those since the line before; 1 if unknown."""
    found = [1] * len(lines)
    for place in range(1, len(lines)):
        found[place] = max(1, lines[place].iteration - lines[place - 1].iteration)
    if len(found) > 1:
        found[0] = found[1]
    return found


def as_it_stands(lines: Sequence[TrainingLine]) -> tuple[TrainingLine, ...]:
    """Return the lines of the training that continues, without iterations that were trained again later.

    A rollback, `--load-fallback` or a crash begins iterations again; what was logged of them before is nothing to
    compare the new ones with, which are as high as the loss was then.
    """
    kept: list[TrainingLine] = []
    for line in lines:
        while kept and kept[-1].iteration >= line.iteration:
            kept.pop()
        kept.append(line)
    return tuple(kept)


def newest(lines: Sequence[TrainingLine], iterations: int, lines_least: int, seconds_least: float = 0.0) -> int:
    """Return where the newest stretch begins that is as long as required in each of the three; -1 without one."""
    counts = steps(lines)
    seen, seconds = 0, 0.0
    for place in range(len(lines) - 1, -1, -1):
        seen += counts[place]
        seconds += (lines[place].seconds_per_iteration or 0.0) * counts[place]
        if seen >= iterations and len(lines) - place >= lines_least and seconds >= seconds_least:
            return place
    return -1


def trained_s(lines: Sequence[TrainingLine]) -> float:
    """Return the seconds that these iterations took, without pauses between them."""
    return sum((line.seconds_per_iteration or 0.0) * count for line, count in zip(lines, steps(lines), strict=True))


def losses(lines: Iterable[TrainingLine]) -> list[float]:
    """Return the finite losses."""
    return [line.loss for line in lines if line.loss is not None and math.isfinite(line.loss)]


def span_words(lines: Sequence[TrainingLine]) -> str:
    """Return the range of iterations: `iterations 31000 to 31020`."""
    first, last = lines[0].iteration, lines[-1].iteration
    return f"iteration {last}" if first == last else f"iterations {first} to {last}"


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value that `share` of `values` do not exceed, interpolated. Needs one value."""
    known = sorted(values)
    place = share * (len(known) - 1)
    low = int(place)
    high = min(low + 1, len(known) - 1)
    return known[low] + (known[high] - known[low]) * (place - low)


def middle(values: Iterable[float]) -> float:
    """Return the median. Needs one value."""
    return quantile(values, 0.5)


def spread(values: Sequence[float]) -> float:
    """Estimate the standard deviation from the median absolute deviation. Needs one value."""
    centre = middle(values)
    return NORMAL * middle(abs(value - centre) for value in values)


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the growth of y per unit of x: the median over all pairs (Theil-Sen). None for fewer than two x."""
    step = max(1, -(-len(points) // _MOST_POINTS))
    few = points[::-1][::step]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for place, later in enumerate(few)
        for earlier in few[place + 1 :]
        if later[0] != earlier[0]
    ]
    return middle(slopes) if slopes else None


@dataclass(frozen=True)
class Excursion:
    """Lines of the log in which the loss is far above what it was."""

    first: int  # place in the series of the first line above
    last: int  # of the last one above, so far
    above: int  # how many are
    usual: float  # the loss before
    peak: float
    is_over: bool = False


def excursions(series: Sequence[TrainingLine]) -> list[Excursion]:
    """Return all excursions in the series, oldest first."""
    return excursions_of([line.iteration for line in series], [finite(line.loss) for line in series])


def excursions_of(iterations: Sequence[float], losses: Sequence[float | None]) -> list[Excursion]:
    """Return all excursions of one loss per line, None where it is not finite; oldest first.

    The usual loss is the median of the usual lines before a line.
    """
    found: list[Excursion] = []
    usual: list[float] = []
    # Above this loss a line may be unusual; infinite until enough lines are known.
    centre, threshold = 0.0, math.inf
    deviations: float | None = None  # of `usual`; only computed where a line needs it
    # By iteration, not by place: an excursion begins at the same line also when the series has moved on.
    newest_iterations = iterations[-USUAL:]
    gaps = [max(1, later - earlier) for earlier, later in pairwise(newest_iterations)] or [1]
    width = RENEWED * middle([gaps[0], *gaps])
    renewed_in: float | None = None
    open_one: Excursion | None = None
    for place, loss in enumerate(losses):
        if loss is None:
            continue
        block = iterations[place] // width
        if block != renewed_in and open_one is None and len(usual) >= USUAL_LEAST:
            usual = usual[-USUAL:]
            centre = middle(usual)
            threshold = (1.0 + SHARE) * centre
            deviations, renewed_in = None, block
        if loss > threshold or open_one is not None:
            deviations = DEVIATIONS * spread(usual) if deviations is None else deviations
            if loss > max(threshold, centre + deviations):
                if open_one is None:
                    open_one = Excursion(place, place, 1, centre, loss)
                else:
                    open_one = replace(open_one, last=place, above=open_one.above + 1, peak=max(open_one.peak, loss))
                continue
            if open_one is not None:
                if place - open_one.last < BACK:
                    continue
                found.append(replace(open_one, is_over=True))
                open_one = None
        usual.append(loss)
    if open_one is not None:
        found.append(open_one)
    return [one for one in found if _is_told(one)]


def _is_told(one: Excursion) -> bool:
    if one.above >= 2:
        return one.above * AMONG >= one.last - one.first
    return one.peak > (1.0 + ALONE) * one.usual
