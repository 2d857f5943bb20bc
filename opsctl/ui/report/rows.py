"""The numbers of a training along its iterations, line by line, and which of them a page keeps."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

#: What runs along an axis, then what is drawn over it.
AXES = ("iteration", "samples", "tokens", "at_s")
CURVES = ("loss", "learning_rate", "batch", "grad_norm", "tflops", "mfu", "tokens_per_second", "seconds")
#: All columns of a row. Besides the above: TFLOP/s without recomputed activations, where a line has both; the number of
#: iterations that were trained, not left out on request; the ranks or nodes that trained them; and the line's number.
COLUMNS = (*AXES, *CURVES, "model_tflops", "trained", "ranks", "nodes", "line")
#: Curves of which thinning keeps the lowest and highest values.
SHAPES = ("loss", "grad_norm", "seconds")
#: Points at the end that are all kept: people zoom in on what is new.
TAIL = 4000
_WIDTH, _PLACES = len(COLUMNS), {name: place for place, name in enumerate(COLUMNS)}
#: With more rows, the older ones are thinned, to half of it at most: memory has an end, a log has none.
MOST_ROWS = 1_000_000


@dataclass(eq=False)
class Rows:
    """A number of each of `COLUMNS` for every line, the iterations ascending. An unknown number is NaN.

    Of more than `MOST_ROWS` only some are kept: see `thin`.
    """

    numbers: array[float] = field(default_factory=lambda: array("d"))
    _thinned: int = 0  # rows that are, from the first on
    _stretch: int = 4 * 2 * len(SHAPES)  # lines of which the extremes were kept

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

    @property
    def lines(self) -> int:
        """The number of lines, with those that are not kept."""
        return int(self.newest("line")) if self.numbers else 0

    def add(self, values: Sequence[float | None]) -> None:
        """Add a line: all columns but its number; None is unknown."""
        self.numbers.extend([math.nan if value is None else value for value in (*values, self.lines + 1)])
        self._thin_if_full()

    def add_columns(self, columns: Sequence[Iterable[float | None]], count: int) -> None:
        """Add `count` lines, given as columns."""
        numbers = range(self.lines + 1, self.lines + 1 + count)
        rows = zip(*columns, numbers, strict=True)
        self.numbers.extend([math.nan if value is None else value for row in rows for value in row])
        self._thin_if_full()

    def _thin_if_full(self) -> None:
        while len(self) > MOST_ROWS:
            self._thin(self._thinned)
            if len(self) > MOST_ROWS // 2:
                self._stretch *= 2
                self._thin(0)

    def _thin(self, begin: int) -> None:
        """Keep of each stretch of lines from the row `begin` on the lowest and highest value of each of `SHAPES`.

        The iterations that were trained in the others count to the next row that is kept.
        """
        end = max(begin, len(self) - TAIL)
        lines, places = self.column("line"), set()
        shapes = [column for name in SHAPES for column in _extremes_of(self.column(name))]
        at = begin
        while at < end:
            after = bisect_left(lines, (lines[at] // self._stretch + 1) * self._stretch, at, end)
            for column, extreme in shapes:
                part = column[at:after]
                places.add(at + part.index(extreme(part)))
            at = after
        trained, kept_rows, gone = _PLACES["trained"], array("d"), 0.0
        for at in range(begin, end):
            row = self.numbers[at * _WIDTH : (at + 1) * _WIDTH]
            gone += row[trained]
            if at in places:
                row[trained], gone = gone, 0.0
                kept_rows.extend(row)
        if end < len(self):
            self.numbers[end * _WIDTH + trained] += gone
        self.numbers[begin * _WIDTH : end * _WIDTH] = kept_rows
        self._thinned = begin + len(kept_rows) // _WIDTH

    def fill(self, values: Mapping[str, float | None]) -> None:
        """Set those columns of the last line that are unknown."""
        for name, value in values.items():
            if value is not None and math.isnan(self.newest(name)):
                self.numbers[_PLACES[name] - _WIDTH] = value

    def cut(self, iteration: int) -> Rows:
        """Take `iteration` and all after it away."""
        place = bisect_left(range(len(self)), iteration, key=lambda place: int(self.numbers[place * _WIDTH]))
        gone = Rows(self.numbers[_WIDTH * place :])
        del self.numbers[_WIDTH * place :]
        self._thinned = min(self._thinned, place)
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
        for known, extreme in _extremes_of(column[:head]):
            for number in range(stretches):
                begin, end = number * head // stretches, (number + 1) * head // stretches
                if begin < end:
                    part = known[begin:end]
                    places.add(begin + part.index(extreme(part)))
    return sorted(places)


def _extremes_of(column: array[float]) -> list[tuple[array[float], Callable[[array[float]], float]]]:
    """Return the column for its lowest values, and for its highest, where an unknown one is neither."""
    if not math.isnan(sum(column)):
        return [(column, min), (column, max)]
    lowest = array("d", (value if value == value else math.inf for value in column))
    return [(lowest, min), (array("d", (value if value == value else -math.inf for value in column)), max)]


@dataclass(frozen=True)
class Utilisation:
    """A column of percent along a course's iterations, NaN if unknown, and its source."""

    percent: array[float]
    source: str
