"""Reading a log from its end: what a gigabyte before it says costs nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

CHUNK_BYTES = 256 * 1024
#: A line -> what to show of it, None: nothing.
Filter = Callable[[str], str | None]


def whole(line: str) -> str | None:
    """The filter that shows everything."""
    return line


def lines_backwards(
    path: Path, limit_bytes: int | None = None, containing: Sequence[bytes] = (), end: int | None = None
) -> Iterator[str]:
    """The log's lines, last one first, without their line ends; only those with one of `containing` in them when given.

    Looks at no more than the last `limit_bytes` bytes; a line that begins before them is left out. A missing file has
    no lines. The size (or `end`, a position in the file) is taken once: what is appended meanwhile is not seen, one cut
    short ends the reading. Where the text ends in a line end, the first line is the empty one after it.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        size = end = os.fstat(fd).st_size if end is None else end
        floor = 0 if limit_bytes is None else max(0, end - limit_bytes)
        rest = b""  # the beginning of a line whose first part lies in the chunk before
        while end > floor:
            begin = max(floor, end - CHUNK_BYTES)
            chunk = os.pread(fd, end - begin, begin)
            if len(chunk) < end - begin:
                return
            pieces = (chunk + rest).split(b"\n")
            rest = pieces.pop(0)
            end = begin
            yield from _decoded(reversed(pieces), containing)
        if floor == 0 and size:
            yield from _decoded([rest], containing)
    finally:
        os.close(fd)


def last_lines(path: Path, count: int, end: int | None = None, wanted: Filter = whole) -> list[str]:
    """The last `count` wanted lines before `end`, in order. A line end at the very end begins no further line."""
    found: list[str] = []
    if count <= 0:
        return found
    for number, line in enumerate(lines_backwards(path, end=end)):
        if number == 0 and not line:
            continue
        shown = wanted(line)
        if shown is None:
            continue
        found.append(shown)
        if len(found) == count:
            break
    return found[::-1]


def _decoded(lines: Iterator[bytes] | Sequence[bytes], containing: Sequence[bytes]) -> Iterator[str]:
    for line in lines:
        if not containing or any(part in line for part in containing):
            yield line.decode(errors="replace").rstrip("\r")
