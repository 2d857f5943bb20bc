"""A log's bytes as lines of text, in bounded memory: holes are skipped, NULs left out, and a line too long is cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

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


class Lines:
    """Puts lines together from bytes as they come; of what has no end yet no more than a line's worth is kept."""

    def __init__(self) -> None:
        self._begun = bytearray()
        self._cut_bytes = 0

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that end in `data`; to be taken all before more is fed."""
        *whole, begun = data.split(b"\n")
        for piece in whole:
            self._add(piece)
            yield self._taken()
        self._add(begun)

    def rest(self) -> Iterator[str]:
        """The line that was not ended, if one was begun."""
        if self._begun or self._cut_bytes:
            yield self._taken()

    def _add(self, piece: bytes) -> None:
        piece = without_nuls(piece)
        room = LONGEST_LINE_BYTES - len(self._begun)
        self._begun += piece[:room]
        self._cut_bytes += max(0, len(piece) - room)

    def _taken(self) -> str:
        line = text_of(bytes(self._begun), self._cut_bytes)
        self._begun.clear()
        self._cut_bytes = 0
        return line


def text_of(line: bytes, cut_bytes: int = 0) -> str:
    """A line as text, whatever its bytes, with how much of it is not there."""
    text = line.decode(errors="replace")
    return f"{text} ... and {cut_bytes} bytes more" if cut_bytes else text.rstrip("\r")


def without_nuls(piece: bytes) -> bytes:
    """What a crashed node, or a writer that did not see its file cut, left of holes where they are not kept as such."""
    return piece.translate(None, b"\0") if b"\0" in piece else piece


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
