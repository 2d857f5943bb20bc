"""A log's bytes as lines of text, in bounded memory: holes are skipped, NULs left out, and a line too long is cut."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence

#: What is kept of a line: a progress bar, or a file that is no log, may never end one.
LONGEST_LINE_BYTES = 64 * 1024
_BLOCK_BYTES = 256 * 1024


def blocks(fd: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """What stands in `fd` from `start` to `end`, as (position after it, bytes); nothing of a hole but where it ends.

    A file that was cut short meanwhile ends the reading.
    """
    while start < end:
        there = _data_from(fd, start)
        if there is None or there > start:
            start = end if there is None else min(there, end)
            yield start, b""
            continue
        data = os.pread(fd, min(_BLOCK_BYTES, end - start), start)
        if not data:
            return
        start += len(data)
        yield start, data


def blocks_backwards(fd: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The same, last block first, as (position of it, bytes)."""
    while end > start:
        begin = _begin_of_hole(fd, start, end)
        if begin < end:
            yield begin, b""
            end = begin
            continue
        begin = max(start, end - _BLOCK_BYTES)
        data = os.pread(fd, end - begin, begin)
        if len(data) < end - begin:
            return
        yield begin, data
        end = begin


def having(marks: Sequence[bytes]) -> Callable[[bytes], object]:
    """What tells whether one of `marks` stands in a line's bytes; every line where there are none."""
    return re.compile(b"|".join(map(re.escape, marks))).search


class Lines:
    """Puts lines together from bytes as they come; of what has no end yet no more than a line's worth is kept."""

    def __init__(self, marks: Sequence[bytes] = ()) -> None:
        """`marks`: only lines with one of them are given, when there are any."""
        self._is_wanted = having(marks)
        self._begun = bytearray()
        self._cut_bytes = 0

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that end in `data`; to be taken all before more is fed."""
        first, *others = without_nuls(data).split(b"\n")
        self._add(first)
        if not others:
            return
        yield from self._taken()
        *whole, begun = others
        for piece in whole:
            if self._is_wanted(piece):
                yield text_of(piece[:LONGEST_LINE_BYTES], max(0, len(piece) - LONGEST_LINE_BYTES))
        self._add(begun)

    def rest(self) -> Iterator[str]:
        """The line that was not ended, if one was begun."""
        if self._begun or self._cut_bytes:
            yield from self._taken()

    def _add(self, piece: bytes) -> None:
        room = LONGEST_LINE_BYTES - len(self._begun)
        self._begun += piece[:room]
        self._cut_bytes += max(0, len(piece) - room)

    def _taken(self) -> Iterator[str]:
        line, cut_bytes = bytes(self._begun), self._cut_bytes
        self._begun.clear()
        self._cut_bytes = 0
        if self._is_wanted(line):
            yield text_of(line, cut_bytes)


def text_of(line: bytes, cut_bytes: int = 0) -> str:
    """A line as text, whatever its bytes, with how much of it is not there."""
    text = line.decode(errors="replace")
    return f"{text} ... and {cut_bytes} bytes more" if cut_bytes else text.rstrip("\r")


def without_nuls(piece: bytes) -> bytes:
    """What a crashed node, or a writer that did not see its file cut, left of holes where they are not kept as such."""
    return piece.translate(None, b"\0") if b"\0" in piece else piece


def is_hole(fd: int, start: int, end: int) -> bool:
    """Whether nothing was ever written there, as far as the file system tells."""
    return not _has_data(fd, start, end)


def _begin_of_hole(fd: int, start: int, end: int) -> int:
    """Where the hole that ends at `end` begins, at the latest; `end` where none does. Its steps grow."""
    begin, width = end, _BLOCK_BYTES
    while begin > start and not _has_data(fd, max(start, begin - width), begin):
        begin = max(start, begin - width)
        width *= 2
    return begin


def _has_data(fd: int, start: int, end: int) -> bool:
    there = _data_from(fd, start)
    return there is not None and there < end


def _data_from(fd: int, position: int) -> int | None:
    """Where the first data from `position` on begin; None where only a hole follows.

    `position` itself on a file system that does not tell: holes then read as the NULs that they stand for.
    """
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        return None if error.errno == errno.ENXIO else position
