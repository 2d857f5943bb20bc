"""Loss and speed of a whole training in bounded memory: means over stretches of iterations. Pure.

All stretches are equally long, a power of two; when there are too many, each two become one. Where a restart goes back,
what was logged beyond that iteration is forgotten: the curve is that of the training as it goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from trainer.formats.logs.training_line import TrainingLine

#: Stretches are joined when there are more.
MOST = 512


class Point(NamedTuple):
    """Means over one stretch of iterations; None: no line of it says."""

    iteration: int  # the first of the stretch
    loss: float | None
    seconds_per_iteration: float | None


class Stretch(msgspec.Struct, array_like=True):
    """Sums over the lines of one stretch."""

    number: int  # it begins at iteration `number * Curve.width`
    losses: int = 0
    loss_sum: float = 0.0
    timed: int = 0
    seconds_sum: float = 0.0

    def add(self, other: Stretch) -> None:
        """Take the lines of another one in."""
        self.losses += other.losses
        self.loss_sum += other.loss_sum
        self.timed += other.timed
        self.seconds_sum += other.seconds_sum


class Curve(msgspec.Struct):
    """What has been taken so far. It changes as lines are taken."""

    width: int = 1  # iterations to a stretch
    stretches: list[Stretch] = []
    last_iteration: int = -1

    def take(self, line: TrainingLine) -> None:
        """Add a line of the log; they are taken in its order."""
        number = line.iteration // self.width
        if line.iteration < self.last_iteration:
            self._go_back(number)
        self.last_iteration = line.iteration
        if not self.stretches or self.stretches[-1].number < number:
            self.stretches.append(Stretch(number))
        self.stretches[-1].add(_of_line(line, number))
        while len(self.stretches) > MOST:
            self._join()

    def points(self) -> list[Point]:
        """Oldest first; a stretch of which nothing was logged is not among them."""
        return [
            Point(
                one.number * self.width,
                one.loss_sum / one.losses if one.losses else None,
                one.seconds_sum / one.timed if one.timed else None,
            )
            for one in self.stretches
        ]

    def _go_back(self, number: int) -> None:
        """The stretch that is gone back into is begun anew: its sums do not tell which of them still counts."""
        while self.stretches and self.stretches[-1].number >= number:
            self.stretches.pop()

    def _join(self) -> None:
        self.width *= 2
        joined: list[Stretch] = []
        for one in self.stretches:
            number = one.number // 2
            if joined and joined[-1].number == number:
                joined[-1].add(one)
            else:
                joined.append(Stretch(number, one.losses, one.loss_sum, one.timed, one.seconds_sum))
        self.stretches = joined


def curve_of(lines: Iterable[TrainingLine]) -> Curve:
    """The curve of lines in the log's order."""
    curve = Curve()
    for line in lines:
        curve.take(line)
    return curve


def _of_line(line: TrainingLine, number: int) -> Stretch:
    loss, seconds = line.loss, line.seconds_per_iteration
    one = Stretch(number)
    if loss is not None and math.isfinite(loss):
        one.losses, one.loss_sum = 1, loss
    if seconds is not None and math.isfinite(seconds):
        one.timed, one.seconds_sum = 1, seconds
    return one
