"""A training log as it is on the hub: its end, what comes, and what its end shows; only the bytes that are new travel.

What was fetched stands in a file without a name at the places where the log has it, and nothing before: so the readers
of a log at hand (`opsctl.run.logs`) read this one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from opsctl.run.logs.line_text import Lines, blocks, end_of_whole_lines, last_lines, start_of_last
from opsctl.transfer.hub.far_files import FarFiles, Look
from opsctl.transfer.hub.hub_errors import NotNow

#: How much of a log's end is fetched at first; four times as much, as often as that is not enough.
_FIRST_BYTES = 64 * 1024
#: Where a run's training log is in its repository, as in its output folder.
MAIN_LOG = "logs/main_log.txt"


@contextlib.contextmanager
def fetched_end(files: FarFiles, look: Look, least_bytes: int) -> Iterator[int]:
    """Yield a descriptor of a file as long as the log, in which its last `least_bytes` bytes stand, or all of it."""
    with tempfile.TemporaryFile() as copy:
        os.ftruncate(copy.fileno(), look.size_bytes)
        _fetch(files, look, copy.fileno(), max(0, look.size_bytes - least_bytes), look.size_bytes)
        yield copy.fileno()


def last_far_lines(files: FarFiles, look: Look, count: int) -> list[str]:
    """Return the last `count` lines. A line end at the very end begins no further line."""
    with _end_with(files, look, count) as fd:
        return list(last_lines(fd, count))


@contextlib.contextmanager
def _end_with(files: FarFiles, look: Look, lines: int) -> Iterator[int]:
    """As `fetched_end`, with at least so many lines in it, and the one that is not ended yet."""
    with tempfile.TemporaryFile() as copy:
        fd, begin, width = copy.fileno(), look.size_bytes, _FIRST_BYTES
        os.ftruncate(fd, look.size_bytes)
        while begin > 0:
            start = max(0, look.size_bytes - width)
            _fetch(files, look, fd, start, begin)
            begin, width = start, 4 * width
            # Not where what is there begins, for that may be the middle of a line.
            if start_of_last(fd, lines, end_of_whole_lines(fd)) > begin:
                break
        yield fd


def _fetch(files: FarFiles, look: Look, fd: int, start: int, end: int) -> None:
    for data in files.read(MAIN_LOG, look, start, end):
        os.pwrite(fd, data, start)
        start += len(data)


@dataclass
class FarFollower:
    """A log that is followed, and how far it was read.

    say: gets what a person should know. pause: called between two looks.
    """

    files: FarFiles
    say: Callable[[str], None]
    pause: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    _lines: Lines = field(default_factory=Lines)
    _seen: Look | None = None
    _at: int = 0
    _trouble: str = ""

    def follow(self, count: int) -> Iterator[str]:
        """Yield the last `count` whole lines, then every further one, for ever; a half-written line is waited for.

        Raises OpsctlError where only a person can help, such as after a token was taken back; all else is waited for.
        """
        while True:
            wait_s = 0.0
            try:
                yield from self._new_lines(count)
            except NotNow as later:
                wait_s = later.wait_s or 0.0
                self._say_trouble(str(later))
            until_s = self.clock() + wait_s
            self.pause()
            while self.clock() < until_s:
                self.pause()

    def _new_lines(self, count: int) -> Iterator[str]:
        look = self.files.look(MAIN_LOG)
        if look is None:
            self._say_trouble(f"no file {MAIN_LOG} there" if self._seen else f"no log yet at {MAIN_LOG}")
            return
        if self._seen is None:
            yield from self._begin(look, count)
        elif look.etag != self._seen.etag:
            yield from self._go_on(look)
        self._seen = look
        if self._trouble:
            self.say(f"{self.files.repo}: there again")
            self._trouble = ""

    def _begin(self, look: Look, count: int) -> Iterator[str]:
        with _end_with(self.files, look, count) as fd:
            start = start_of_last(fd, count, end_of_whole_lines(fd))
            self._at, self._seen = look.size_bytes, look
            for _, data in blocks(fd, start, look.size_bytes):
                yield from self._lines.feed(data)

    def _go_on(self, look: Look) -> Iterator[str]:
        if look.size_bytes < self._at:
            yield from self._lines.rest()
            self._at = 0
            self.say(f"{MAIN_LOG} was cut short; reading it from its beginning")
        for data in self.files.read(MAIN_LOG, look, self._at, look.size_bytes):
            self._at += len(data)
            yield from self._lines.feed(data)

    def _say_trouble(self, why: str) -> None:
        if why != self._trouble:
            self.say(f"{self.files.repo}: {why}; waiting for it")
        self._trouble = why
