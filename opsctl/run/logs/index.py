"""A summary of a whole training log, read once: every later check reads only the new part.

The summary is stored in the account's own cache, so it depends on no other user, two processes cannot damage it, and a
lost cache costs one more reading. The log is identified by its contents: its first bytes, and the last bytes read. A
log that was replaced, truncated or rewritten is a new log.
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

#: With more stretches, neighbours are joined.
MOST = 512


class Point(NamedTuple):
    """Means over one stretch of iterations; None: not in any of its lines."""

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
        """Add the lines of another stretch."""
        self.losses += other.losses
        self.loss_sum += other.loss_sum
        self.timed += other.timed
        self.seconds_sum += other.seconds_sum


class Curve(msgspec.Struct):
    """The curve of all lines so far; `take` changes it."""

    width: int = 1  # iterations per stretch
    stretches: list[Stretch] = []
    last_iteration: int = -1

    def take(self, line: TrainingLine) -> None:
        """Add a line of the log. Lines must be added in order."""
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
        """Return the points, oldest first, without stretches that have no lines."""
        return [
            Point(
                one.number * self.width,
                one.loss_sum / one.losses if one.losses else None,
                one.seconds_sum / one.timed if one.timed else None,
            )
            for one in self.stretches
        ]

    def _go_back(self, number: int) -> None:
        """Restart the stretch that the training went back into: its sums mix kept and discarded iterations."""
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
    """Return the curve of lines in the log's order."""
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


#: Bytes at a log's beginning, and of the last part read, that identify it.
_IDENTIFYING_BYTES = 4096


def digests(fd: int, read_bytes: int) -> tuple[str, str]:
    """Return the digests of the first and the last bytes read. Raises OSError."""
    return (
        _digest(fd, 0, min(_IDENTIFYING_BYTES, read_bytes)),
        _digest(fd, max(0, read_bytes - _IDENTIFYING_BYTES), read_bytes),
    )


def is_same(fd: int, read_bytes: int, known: tuple[str, str]) -> bool:
    """Return True if the open file begins with the part that was read. Raises OSError."""
    return read_bytes <= os.fstat(fd).st_size and digests(fd, read_bytes) == known


def _digest(fd: int, start: int, end: int) -> str:
    return hashlib.blake2b(os.pread(fd, end - start, start), digest_size=16).hexdigest()


#: Every line about an iteration, of any program, has one of these.
_MARKS = (b"iteration", b" - INFO - ")
#: Increased when the stored fields, or the parsing of lines, change.
VERSION = 2
#: Seconds of reading per check: a log of terabytes takes several checks.
USUAL_S = 0.1
#: Less than this is read again at every check instead of stored.
_WORTH_KEEPING_BYTES = 64 * 1024
#: A stored summary has about 30 kB, and the beginning of a line.
_LARGEST_BYTES = 1 << 20
#: Summaries of logs that were not checked for so long are deleted.
_FORGOTTEN_AFTER_S = 90 * 86400.0


class LogIndex(msgspec.Struct, kw_only=True):
    """The summary of a log's first `read_bytes` bytes."""

    version: int = VERSION
    read_bytes: int = 0
    begun: bytes = b""  # of the unfinished line there, up to the length kept of any line
    size_bytes: int = 0  # of the log at the last check
    first: str = ""  # digests of the log's first bytes, and of the last bytes read
    last: str = ""
    reader: LogReader = msgspec.field(default_factory=LogReader)
    curve: Curve = msgspec.field(default_factory=Curve)
    last_line: TrainingLine | None = None  # about an iteration

    @property
    def is_caught_up(self) -> bool:
        """Return True if only an unfinished line is left to read."""
        return self.size_bytes - self.read_bytes <= LONGEST_LINE_BYTES

    def is_of(self, fd: int) -> bool:
        """Return True if the open file is the log that was read."""
        is_known = self.version == VERSION and self.read_bytes > 0
        return is_known and is_same(fd, self.read_bytes, (self.first, self.last))


def read_current(paths: RunPaths, budget_s: float = USUAL_S) -> LogIndex:
    """Return the log's summary after reading for up to `budget_s` seconds; an empty one without a trusted log."""
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
    return LogIndex()  # the summary is optional, so it never fails


def read_on(fd: int, index: LogIndex, budget_s: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Add new lines to `index`, at least one block. Raises OSError."""
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
    """Add the newest line although it may continue in the next: for a caller that reads no further."""
    _take(index, index.reader.rest())


def _take(index: LogIndex, records: Iterable[Found]) -> None:
    for record in records:
        if isinstance(record, TrainingLine):
            index.curve.take(record)
            index.last_line = record


def _records(reader: LogReader, data: bytes) -> Iterator[Found]:
    """Yield the records of whole lines about iterations. Skips lines without a mark, except pieces of broken ones."""
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
    """Store the summary. If that fails, the next check reads more. A concurrent check stores an equally valid one."""
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
