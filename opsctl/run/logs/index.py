"""What a whole training log shows, read once: every later look reads only what has come since.

The summary lies in the account's own cache, so nobody else's word is taken, two lookers cannot hurt each other, and an
emptied cache costs one more reading. Which log it is about is told by contents: its first bytes, and the last ones that
were read. A log that was replaced, cut short or written anew from the beginning is another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from opsctl.core.files.state_files import read_state, write_atomically
from opsctl.core.files.trusted import cache_folder, opened_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.line_text import LONGEST_LINE_BYTES, blocks
from opsctl.run.logs.reader import Found, LogReader
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


#: So much of a log's beginning, and of what was read last, tells whether it is still the same.
_TOLD_BY_BYTES = 4096


def digests(fd: int, read_bytes: int) -> tuple[str, str]:
    """Of the first bytes of what was read, and of the last. Raises OSError."""
    return (
        _digest(fd, 0, min(_TOLD_BY_BYTES, read_bytes)),
        _digest(fd, max(0, read_bytes - _TOLD_BY_BYTES), read_bytes),
    )


def is_same(fd: int, read_bytes: int, known: tuple[str, str]) -> bool:
    """Whether what is open now begins with what was read. Raises OSError."""
    return read_bytes <= os.fstat(fd).st_size and digests(fd, read_bytes) == known


def _digest(fd: int, start: int, end: int) -> str:
    return hashlib.blake2b(os.pread(fd, end - start, start), digest_size=16).hexdigest()


#: One of these is in every line about an iteration, whichever program writes it.
_MARKS = (b"iteration", b" - INFO - ")
#: Another one where what is kept, or how lines are understood, has changed.
VERSION = 2
#: Seconds that one look may read for: a log of terabytes is caught up with over several looks.
USUAL_S = 0.1
#: So much is read again rather than kept at every look.
_WORTH_KEEPING_BYTES = 64 * 1024
#: A kept summary is some 30 kB, and the beginning of a line.
_LARGEST_BYTES = 1 << 20
#: Of a log that nobody has looked at for so long, nothing is kept.
_FORGOTTEN_AFTER_S = 90 * 86400.0


class LogIndex(msgspec.Struct, kw_only=True):
    """The summary of a log's first `read_bytes` bytes."""

    version: int = VERSION
    read_bytes: int = 0
    begun: bytes = b""  # of the line that had not ended there, no more than is kept of any
    size_bytes: int = 0  # of the log, when it was last looked at
    first: str = ""  # digests of the log's first bytes, and of the last that were read
    last: str = ""
    reader: LogReader = msgspec.field(default_factory=LogReader)
    curve: Curve = msgspec.field(default_factory=Curve)
    last_line: TrainingLine | None = None  # about an iteration

    @property
    def is_caught_up(self) -> bool:
        """Whether nothing but a line that is not ended yet is left to read."""
        return self.size_bytes - self.read_bytes <= LONGEST_LINE_BYTES

    def is_of(self, fd: int) -> bool:
        """Return whether the log that is open as `fd` is the one that was read."""
        is_known = self.version == VERSION and self.read_bytes > 0
        return is_known and is_same(fd, self.read_bytes, (self.first, self.last))


def look(paths: RunPaths, budget_s: float = USUAL_S) -> LogIndex:
    """Return the log's summary, reading on for up to `budget_s` seconds; an empty one without a trusted log."""
    with contextlib.suppress(OSError), opened_file(paths.output, paths.main_log) as fd:
        folder = cache_folder("logs")
        file = folder / f"{hashlib.sha256(str(paths.main_log).encode()).hexdigest()[:24]}.json" if folder else None
        kept = read_state(folder, file, LogIndex, _LARGEST_BYTES) if folder and file else None
        index = kept if kept is not None and kept.is_of(fd) else LogIndex()
        before_bytes = index.read_bytes
        read_on(fd, index, budget_s)
        if folder and file and index.read_bytes - before_bytes >= _WORTH_KEEPING_BYTES:
            _keep(folder, file, index)
        take_newest(index)
        return index
    return LogIndex()  # what the index adds is not worth a failure


def read_on(fd: int, index: LogIndex, budget_s: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Take what has come since into `index`, at least one block of it. Raises OSError."""
    until_s = clock() + budget_s
    index.size_bytes = os.fstat(fd).st_size
    for at, data in blocks(fd, index.read_bytes, index.size_bytes):
        end = data.rfind(b"\n") + 1
        if end:
            _take(index, _records(index.reader, index.begun + data[:end]))
            index.begun = b""
        index.begun = (index.begun + data[end:])[:LONGEST_LINE_BYTES]
        index.read_bytes = at
        if clock() >= until_s:
            break
    index.first, index.last = digests(fd, index.read_bytes)


def take_newest(index: LogIndex) -> None:
    """Take the newest line as it stands, though it may go on in the next: for who shows it and reads no further."""
    _take(index, index.reader.rest())


def _take(index: LogIndex, records: Iterable[Found]) -> None:
    for record in records:
        if isinstance(record, TrainingLine):
            index.curve.take(record)
            index.last_line = record


def _records(reader: LogReader, data: bytes) -> Iterator[Found]:
    """What whole lines say of iterations. Lines with no mark are passed over, but for the rest of a broken one."""
    at = 0
    marks = {mark: data.find(mark) for mark in _MARKS}
    while True:
        if not reader.begun:
            for mark, place in marks.items():
                if 0 <= place < at:
                    marks[mark] = data.find(mark, at)
            places = [place for place in marks.values() if place >= 0]
            at = data.rfind(b"\n", 0, min(places)) + 1 if places else len(data)
        if at >= len(data):
            return
        end = data.find(b"\n", at) + 1
        yield from reader.feed(data[at:end])
        at = end


def _keep(folder: Path, file: Path, index: LogIndex) -> None:
    """Not being able to costs the next look a longer reading. Whoever looks beside us keeps what is as true."""
    with contextlib.suppress(OSError):
        is_new = not file.exists()
        write_atomically(folder, file, msgspec.json.encode(index), mode=0o600)
        if is_new:
            _forget_old(folder)


def _forget_old(folder: Path) -> None:
    for one in folder.glob("*.json"):
        with contextlib.suppress(OSError):
            if time.time() - one.stat().st_mtime > _FORGOTTEN_AFTER_S:
                one.unlink()
