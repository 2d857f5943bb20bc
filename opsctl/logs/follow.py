"""Following a log as it grows, through rotation, truncation and its creation, by looking at it again and again.

Looking, not inotify: what another node appends on a network file system raises no event here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from opsctl.logs.tail import Filter, last_lines, whole

#: Seconds that a pause should take.
POLL_S = 0.25
_BLOCK_BYTES = 1024 * 1024


def follow(
    path: Path,
    lines: int,
    say: Callable[[str], None],
    pause: Callable[[], None],
    wanted: Filter = whole,
) -> Iterator[str]:
    """The last `lines` wanted lines of `path`, then every further one as it is written, for ever.

    A half-written line is waited for; before a rotation or at a truncation it is given as it stands. `say` gets what a
    person should know: there is no log yet, it was replaced, it was cut. `pause` is called between two looks.
    """
    source = _Source(path)
    if source.open():
        yield from last_lines(path, lines, source.skip_to_last_line_end(), wanted)
    else:
        say(f"no log yet at {path}; waiting for it")
    while True:
        yield from _shown(source.new_lines(), wanted)
        event = source.moved()
        if event:
            yield from _shown(source.rest(), wanted)
            say(f"{path} {event}")
        elif source.is_idle:
            pause()


def _shown(lines: Iterator[str], wanted: Filter) -> Iterator[str]:
    return (shown for line in lines if (shown := wanted(line)) is not None)


class _Source:
    """An open log and how far it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd: int | None = None
        self.half = b""
        self.is_idle = True

    def open(self) -> bool:
        try:
            self.fd = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        return True

    def skip_to_last_line_end(self) -> int:
        """Continue after the last whole line, and say where that is; the half one after it comes when it is whole."""
        if self.fd is None:
            return 0
        end = os.fstat(self.fd).st_size
        while end:
            begin = max(0, end - _BLOCK_BYTES)
            last = os.pread(self.fd, end - begin, begin).rfind(b"\n")
            end = begin + last + 1
            if last >= 0:
                break
        return os.lseek(self.fd, end, os.SEEK_SET)

    def new_lines(self) -> Iterator[str]:
        block = os.read(self.fd, _BLOCK_BYTES) if self.fd is not None else b""
        self.is_idle = not block
        if block:
            *whole, self.half = (self.half + block).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")

    def rest(self) -> Iterator[str]:
        """What is left of a file that will not be continued, a half line included."""
        left, self.half = self.half, b""
        for line in left.splitlines():
            yield line.decode(errors="replace")

    def moved(self) -> str:
        """Says what happened to the file when it is no longer what was being read; else ""."""
        if not self.is_idle:
            return ""
        if self.fd is None:
            return "is there now" if self.open() else ""
        here = os.fstat(self.fd)
        try:
            there = self.path.stat()
        except FileNotFoundError:
            # Between the two steps of a rotation there is no file: keep reading the old one until a new one appears.
            return ""
        if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
            while block := os.read(self.fd, _BLOCK_BYTES):  # written to the old one since we last looked
                self.half += block
            os.close(self.fd)
            self.fd = None
            return "was replaced; reading the new one" if self.open() else ""
        if here.st_size < os.lseek(self.fd, 0, os.SEEK_CUR):
            os.lseek(self.fd, 0, os.SEEK_SET)
            return "was cut short; reading it from its beginning"
        return ""
