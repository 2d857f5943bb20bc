"""Read a log's bytes as lines of text in bounded memory: skip holes, remove NULs, cut long lines."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence

from opsctl.run.logs import line_text

#: Bytes of a line that are kept: a progress bar, or a binary file, may have no line ends.
LONGEST_LINE_BYTES = 64 * 1024
_BLOCK_BYTES = 256 * 1024


def blocks(fd: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (position after it, bytes) from `start` to `end`; of a hole only its end. Stops if the file was cut."""
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
    """Yield (position, bytes) of the same blocks, last first."""
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


def having(marks: Sequence[bytes]) -> Callable[..., re.Match[bytes] | None]:
    """Return a function that searches bytes, from a position on, for one of `marks`; none always matches."""
    return re.compile(b"|".join(map(re.escape, marks))).search


class Lines:
    """Joins blocks of bytes into lines; keeps at most LONGEST_LINE_BYTES of an unfinished line."""

    def __init__(self, marks: Sequence[bytes] = ()) -> None:
        """Return only lines with one of `marks`, if there are any."""
        self._is_wanted = having(marks)
        self._begun = bytearray()
        self._cut_bytes = 0

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield the lines that end in `data`. Consume all of them before the next call."""
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
        """Yield the unfinished line, if any."""
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
    """Decode a line, with a note on the bytes that were cut."""
    text = line.decode(errors="replace")
    return f"{text} ... and {cut_bytes} bytes more" if cut_bytes else text.rstrip("\r")


def without_nuls(piece: bytes) -> bytes:
    """Remove NULs, which a crashed node or a truncated file leaves in place of holes on some file systems."""
    return piece.translate(None, b"\0") if b"\0" in piece else piece


def is_hole(fd: int, start: int, end: int) -> bool:
    """Return True if nothing was ever written there, according to the file system."""
    return not _has_data(fd, start, end)


def _begin_of_hole(fd: int, start: int, end: int) -> int:
    """Return a position in the hole that ends at `end`, near its beginning; `end` without a hole. Its steps grow."""
    begin, width = end, _BLOCK_BYTES
    while begin > start and not _has_data(fd, max(start, begin - width), begin):
        begin = max(start, begin - width)
        width *= 2
    return begin


def _has_data(fd: int, start: int, end: int) -> bool:
    there = _data_from(fd, start)
    return there is not None and there < end


def _data_from(fd: int, position: int) -> int | None:
    """Return where data begins from `position` on; None for only a hole, `position` if the file system cannot tell."""
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        return None if error.errno == errno.ENXIO else position


#: Maps a line to the text to show; None: hide the line.
Filter = Callable[[str], str | None]


def whole(line: str) -> str | None:
    """Show every line."""
    return line


def lines_backwards(fd: int, limit_bytes: int | None = None, marks: Sequence[bytes] = ()) -> Iterator[str]:
    """Yield the log's lines, last first, of its last `limit_bytes`; only those with one of `marks` if given. The size
    is taken once; where the text ends in a line end, the first line is empty.
    """
    end = os.fstat(fd).st_size
    start = 0 if limit_bytes is None else max(0, end - limit_bytes)
    is_wanted = having(marks)
    for _, line, cut_bytes in _placed_backwards(fd, start, end, marks):
        if is_wanted(line):
            yield text_of(line, cut_bytes)


def last_lines(fd: int, count: int, wanted: Filter = whole, begin: int = 0, end: int | None = None) -> Iterator[str]:
    """Yield the last `count` wanted lines between `begin` and `end`, in order."""
    end = os.fstat(fd).st_size if end is None else end
    start = max(begin, start_of_last(fd, count, end, wanted))
    lines = Lines()
    for _, data in blocks(fd, start, end):
        yield from shown(lines.feed(data), wanted)
    yield from shown(lines.rest(), wanted)


def start_of_last(fd: int, count: int, end: int, wanted: Filter = whole) -> int:
    """Return the position of the last `count` wanted lines before `end`; 0 if there are fewer."""
    if count <= 0:
        return end
    for number, (start, line, cut_bytes) in enumerate(_placed_backwards(fd, 0, end)):
        is_line = number > 0 or line  # empty text or a hole after the last line end is no line
        if is_line and wanted(text_of(line, cut_bytes)) is not None:
            count -= 1
            if count == 0:
                return start
    return 0


def end_of_whole_lines(fd: int) -> int:
    """Return the position after the last line end."""
    end = os.fstat(fd).st_size
    return next((start for start, _, _ in _placed_backwards(fd, 0, end)), 0)


def shown(lines: Iterator[str], wanted: Filter) -> Iterator[str]:
    """Return the texts that `wanted` shows."""
    return (text for line in lines if (text := wanted(line)) is not None)


def _placed_backwards(fd: int, start: int, end: int, marks: Sequence[bytes] = ()) -> Iterator[tuple[int, bytes, int]]:
    """Yield (position, bytes, bytes cut) of each line, last first; without `marks` it may leave lines out."""
    line, cut_bytes = b"", 0  # the later part of a line that begins in an earlier block
    begin = end
    for begin, data in blocks_backwards(fd, start, end):
        stop = len(data)
        if marks and b"\0" not in data and (first := data.find(b"\n")) >= 0:
            last = data.rfind(b"\n")
            line, cut_bytes = _joined(data[last + 1 :], line, cut_bytes)
            yield begin + last + 1, line, cut_bytes
            for place, line_end in reversed(_marked(data, first + 1, last, marks)):
                line, cut_bytes = _joined(data[place:line_end], b"", 0)
                yield begin + place, line, cut_bytes
            line, cut_bytes, stop = b"", 0, first
        while (line_end := data.rfind(b"\n", 0, stop)) >= 0:
            line, cut_bytes = _joined(data[line_end + 1 : stop], line, cut_bytes)
            yield begin + line_end + 1, line, cut_bytes
            line, cut_bytes, stop = b"", 0, line_end
        line, cut_bytes = _joined(data[:stop], line, cut_bytes)
    if begin == start == 0 and end:
        yield 0, line, cut_bytes


def _marked(data: bytes, start: int, stop: int, marks: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return begin and end of whole lines with one of `marks`, by one fast search per mark."""
    found: dict[int, int] = {}
    for mark in marks:
        at = data.find(mark, start, stop)
        while at >= 0:
            line_end = data.find(b"\n", at, stop)
            line_end = stop if line_end < 0 else line_end
            found[data.rfind(b"\n", 0, at) + 1] = line_end
            at = data.find(mark, line_end, stop)
    return sorted(found.items())


def _joined(before: bytes, line: bytes, cut_bytes: int) -> tuple[bytes, int]:
    joined = without_nuls(before) + line
    most = line_text.LONGEST_LINE_BYTES
    return joined[:most], cut_bytes + max(0, len(joined) - most)
