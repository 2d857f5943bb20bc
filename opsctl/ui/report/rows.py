"""The numbers of a training along its iterations, line by line, and which of them a page keeps."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

#: What runs along an axis, then what is drawn over it.
AXES = ("iteration", "samples", "tokens", "at_s")
CURVES = ("loss", "learning_rate", "batch", "grad_norm", "tflops", "mfu", "tokens_per_second", "seconds")
#: All columns of a row. Besides the above: TFLOP/s without recomputed activations, where a line has both; the number of
#: iterations that were trained, not left out on request; and the ranks or nodes that trained them.
COLUMNS = (*AXES, *CURVES, "model_tflops", "trained", "ranks", "nodes")
#: Curves of which thinning keeps the lowest and highest values.
SHAPES = ("loss", "grad_norm", "seconds")
_WIDTH, _PLACES = len(COLUMNS), {name: place for place, name in enumerate(COLUMNS)}


@dataclass(eq=False)
class Rows:
    """A number of each of `COLUMNS` for every line, the iterations ascending. An unknown number is NaN."""

    numbers: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.numbers) // _WIDTH

    def __eq__(self, other: object) -> bool:
        """Return whether they are the same, with unknown values equal."""
        return isinstance(other, Rows) and self.numbers.tobytes() == other.numbers.tobytes()

    def column(self, name: str) -> array[float]:
        """Return one of `COLUMNS`, along the iterations."""
        return self.numbers[_PLACES[name] :: _WIDTH]

    def newest(self, name: str) -> float:
        """Return the last value of a column. Needs one line."""
        return self.numbers[_PLACES[name] - _WIDTH]

    def add(self, values: Sequence[float | None]) -> None:
        """Add a line; None is unknown."""
        self.numbers.extend([math.nan if value is None else value for value in values])

    def cut(self, iteration: int) -> Rows:
        """Take `iteration` and all after it away."""
        place = bisect_left(range(len(self)), iteration, key=lambda place: int(self.numbers[place * _WIDTH]))
        gone = Rows(self.numbers[_WIDTH * place :])
        del self.numbers[_WIDTH * place :]
        return gone

    def shift(self, by_s: float) -> None:
        """Move all moments."""
        for place in range(_PLACES["at_s"], len(self.numbers), _WIDTH):
            self.numbers[place] += by_s


@dataclass(frozen=True)
class Superseded:
    """Iterations that were trained again later, after a restart or a rollback, as they were the time before."""

    first: int  # the first of them, of which the log's lines may be only one in ten
    last: int
    rows: Rows

    @property
    def iterations(self) -> int:
        """The number of trained iterations; those skipped on request do not count."""
        return sum(self._trained())

    @property
    def trained_s(self) -> float:
        """The seconds of training that they took, by their lines; 0 if unknown."""
        each_s = zip(self._trained(), self.rows.column("seconds"), strict=True)
        return sum(iterations * seconds for iterations, seconds in each_s if math.isfinite(seconds))

    def _trained(self) -> Iterator[int]:
        """Yield the iterations of each line, for the first one only those from `first` on."""
        before = self.first - 1
        for at, trained in zip(self.rows.column("iteration"), self.rows.column("trained"), strict=True):
            yield int(min(trained, at - before))
            before = int(at)


#: Points at the end that are all kept: people zoom in on what is new.
TAIL = 4000


def kept(columns: Sequence[array[float]], most: int, tail: int = TAIL, always: Collection[int] = ()) -> list[int]:
    """Return the places to keep of columns of one length: about `most`, and those of `always`.

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


@dataclass(frozen=True)
class Utilisation:
    """A column of percent along a course's iterations, NaN if unknown, and its source."""

    percent: array[float]
    source: str
