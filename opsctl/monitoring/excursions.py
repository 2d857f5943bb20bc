"""Where a training's loss left what was usual just before, and whether it came back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opsctl.monitoring.robust import middle, spread
from opsctl.monitoring.series import finite, steps
from trainer.formats.logs.training_line import TrainingLine

#: Usual lines that say what is usual, how many that needs, and after how many the word is renewed.
USUAL, USUAL_LEAST, RENEWED = 100, 20, 10
#: Above the usual loss by so many of its standard deviations, and by this share of it, is no chance.
DEVIATIONS, SHARE = 8.0, 0.1
#: One line alone is told only when it is above by this share; else it takes two among so many.
ALONE, AMONG = 0.5, 5
#: So many lines in a row at the usual end it.
BACK = 10


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
    """All in the series, oldest first. What is usual is what the lines before it say that were usual themselves."""
    found: list[Excursion] = []
    usual: list[float] = []
    centre = 0.0
    deviations: float | None = None  # of `usual`; only worked out where a line asks for it
    # By iteration, not by place: an excursion begins at the same line also when the series has moved on.
    width = RENEWED * middle(steps(series[-USUAL:])) if series else 1.0
    renewed_in: float | None = None
    open_one: Excursion | None = None
    for place, line in enumerate(series):
        loss = finite(line.loss)
        if loss is None:
            continue
        block = line.iteration // width
        if block != renewed_in and open_one is None and len(usual) >= USUAL_LEAST:
            usual = usual[-USUAL:]
            centre = middle(usual)
            deviations, renewed_in = None, block
        is_above = len(usual) >= USUAL_LEAST and loss > (1.0 + SHARE) * centre
        if is_above:
            deviations = DEVIATIONS * spread(usual) if deviations is None else deviations
            is_above = loss > centre + deviations
        if is_above:
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
