"""Search a log's bytes in one pass for lines with words of the rules, in bounded time and memory.

Lines repeat: a gigabyte of a training's log has a few thousand shapes (lines without their digits). The pass removes
the digits of each block and puts its lines into a set. Only a new shape is searched for words, so the cost is that of
removing digits and splitting. Lines with a word are checked each time, up to a limit. The newest part is read first,
so that a limit of time or size leaves out the oldest.

Every collection has a limit. Of lines with the same words the newest and the oldest are kept, so that many lines of
one kind hide neither another kind nor the first line of their own.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

from opsctl.diagnosis.triage.rules import Rules
from opsctl.run.logs.line_text import blocks, without_nuls

#: Bytes of one step, newest first: small enough that the newest lines are always checked.
_WINDOW_BYTES = 2 << 20
#: Only the beginning of a line counts: a binary file or a progress bar may have no line ends.
LONGEST_LINE_BYTES = 8 << 10
#: The newest part of a log that is read.
MOST_BYTES = 2 << 30
#: Lines of one shape that are kept, and lines in total.
_MOST_ALIKE, _MOST_HITS, _MOST_HITS_BYTES = 1500, 12_000, 16 << 20
#: Lines with the same words that are kept beyond that limit, newest and oldest; and the number of sets of words.
_NEWEST, _OLDEST, _MOST_KINDS = 64, 16, 64
#: Words that define a line's kind.
_MOST_WORDS = 6
#: Memory for shapes without a word; beyond it they are forgotten and searched again.
_MOST_SHAPES_BYTES = 24 << 20
_DIGITS = b"0123456789"
#: The end of a word in a tree of words.
_ENDS = b""
#: A progress line of any trainer, with the iteration.
_PROGRESS = re.compile(
    rb"iteration[ =]+(\d+) ?/ *\d+ ?\||iteration=\s*(\d+)/|\bstep[:= ]+(\d+)\b[^\n]{0,80}\bloss"
    rb"|\{'loss': |[Ii]ter(?:ation)?[:= ]+(\d+)\b[^\n]{0,80}\bloss|global_step[:= ]+(\d+)\b[^\n]{0,120}loss"
)
_PROGRESS_MARKS = (b"iteration", b"loss")
_PROGRESS_WITHIN_BYTES = 64 << 20


@dataclass(frozen=True)
class Hit:
    """A line with a word of a rule."""

    begin: int  # position in the file
    line: bytes


@dataclass
class Scan:
    """The result of a search."""

    hits: list[Hit] = field(default_factory=list)  # in the file's order
    begin: int = 0  # start of the part that was read
    end: int = 0
    is_whole: bool = True  # the whole part was read


def scan(
    fd: int,
    start: int,
    end: int,
    rules: Rules,
    ends_at: float,
    extra: tuple[bytes, ...] = (),
    most_bytes: int | None = None,
) -> Scan:
    """Return the lines from `start` to `end` in `fd` with a word of `rules` or of `extra`.

    Reads at most the newest `most_bytes` (default MOST_BYTES), and stops when `time.monotonic()` reaches `ends_at`.
    """
    words = tuple(dict.fromkeys([*extra, *(word for row in rules.rows for word in row.words)]))
    search = _Search(_any_of(words), ends_at)
    found = Scan(begin=end, end=end)
    least = max(start, end - (MOST_BYTES if most_bytes is None else most_bytes))
    while found.begin > least and time.monotonic() < ends_at:
        begin = max(least, found.begin - _WINDOW_BYTES)
        for hit in reversed(list(_window(fd, begin, found.begin, begin == start, end, search))):
            search.keep(*hit)
        if search.is_cut:
            break
        found.begin = begin
    found.hits = search.kept()
    found.is_whole = found.begin <= start
    return found


@cache
def _any_of(words: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Return a pattern for all `words`, as a tree of prefixes: ten times faster than a search for each word."""
    tree: dict[bytes, Any] = {}
    for word in words:
        at = tree
        for index in range(len(word)):
            at = at.setdefault(word[index : index + 1], {})
        at[_ENDS] = {}
    return re.compile(_written(tree))


def _written(tree: dict[bytes, Any]) -> bytes:
    if _ENDS in tree:
        return b""
    branches = [re.escape(byte) + _written(below) for byte, below in tree.items()]
    return branches[0] if len(branches) == 1 else b"(?:" + b"|".join(branches) + b")"


@dataclass
class _Kind:
    """Lines with the same words in them, the newest first."""

    newest: list[Hit] = field(default_factory=list)
    oldest: deque[Hit] = field(default_factory=lambda: deque(maxlen=_OLDEST))


@dataclass
class _Search:
    """The state of a search, over all windows."""

    words: re.Pattern[bytes]  # one search for all of them, see _any_of
    ends_at: float
    is_cut: bool = False  # a window was not searched to its end
    shapes: set[bytes] = field(default_factory=set)
    shapes_bytes: int = 0
    alike: Counter[bytes] = field(default_factory=Counter)  # of kept lines
    first: dict[bytes, Hit] = field(default_factory=dict)  # shapes with enough kept lines -> their oldest line
    kinds: dict[frozenset[bytes], _Kind] = field(default_factory=dict)
    hits: int = 0
    hits_bytes: int = 0

    def forget_if_many(self) -> None:
        if self.shapes_bytes > _MOST_SHAPES_BYTES:
            self.shapes.clear()
            self.shapes_bytes = 0

    def note(self, shape: bytes) -> None:
        self.shapes.add(shape)
        self.shapes_bytes += len(shape) + 64

    def words_in(self, line: bytes) -> frozenset[bytes]:
        """Return the first words of the line; none if it has none."""
        return frozenset([match[0] for match in islice(self.words.finditer(line), _MOST_WORDS)])

    def keep(self, hit: Hit, shape: bytes, words: frozenset[bytes]) -> None:
        """Keep a line that is older than all before it, as far as the limits allow."""
        if shape in self.first:
            self.first[shape] = hit
            return
        if len(self.kinds) >= _MOST_KINDS and words not in self.kinds:
            words = frozenset()
        kind = self.kinds.setdefault(words, _Kind())
        is_enough = self.hits >= _MOST_HITS or self.hits_bytes >= _MOST_HITS_BYTES
        if is_enough and len(kind.newest) >= _NEWEST:
            kind.oldest.append(hit)
            self.note(shape)
            return
        kind.newest.append(hit)
        self.hits += 1
        self.hits_bytes += len(hit.line)
        self.alike[shape] += 1
        if self.alike[shape] >= _MOST_ALIKE:
            self.first[shape] = hit

    def kept(self) -> list[Hit]:
        """Return all lines that were kept, in the file's order."""
        found = {hit.begin: hit for kind in self.kinds.values() for hit in (*kind.newest, *kind.oldest)}
        found.update((hit.begin, hit) for hit in self.first.values())
        return [found[begin] for begin in sorted(found)]


def _window(
    fd: int, begin: int, end: int, is_first: bool, end_of_all: int, search: _Search
) -> Iterator[tuple[Hit, bytes, frozenset[bytes]]]:
    """Return the hits among lines that begin between `begin` and `end`, each with its shape and words."""
    for position, text in _whole_lines(fd, begin, end, is_first, end_of_all):
        squeezed = text.translate(None, _DIGITS)
        shapes = squeezed.split(b"\n")
        there = set(shapes)
        for shape in there & search.first.keys():
            if position < search.first[shape].begin:
                search.first[shape] = _first_of(position, text, shapes.index(shape))
        new = there - search.shapes - search.first.keys()
        if not new:
            continue
        if time.monotonic() > search.ends_at:
            search.is_cut = True
            return
        for line_begin, line, shape in _placed(position, text, shapes):
            if shape not in new:
                continue
            if line_begin > end:  # the window after this one had it
                return
            if words := search.words_in(line):
                yield Hit(line_begin, line), shape, words
            else:
                new.discard(shape)
                search.note(shape)
        search.forget_if_many()


def _first_of(position: int, text: bytes, index: int) -> Hit:
    """Return the line at that index in `text`, which begins at `position`."""
    lines = text.split(b"\n", index + 1)
    return Hit(position + sum(map(len, lines[:index])) + index, lines[index][:LONGEST_LINE_BYTES])


def _placed(position: int, text: bytes, shapes: list[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    for line, shape in zip(text.split(b"\n"), shapes, strict=True):
        yield position, line[:LONGEST_LINE_BYTES], shape
        position += len(line) + 1


def _whole_lines(fd: int, begin: int, end: int, is_first: bool, end_of_all: int) -> Iterator[tuple[int, bytes]]:
    """Return (position, text) of lines that begin before `end`. A carriage return ends a line; long ones are cut."""
    carry, at, skips = b"", begin, not is_first
    for after, data in blocks(fd, begin, min(end_of_all, end + LONGEST_LINE_BYTES)):
        block_at = after - len(data)
        if not data or block_at != at + len(carry):  # a hole ends what came before it
            if carry and not skips:
                yield at, _cleaned(carry)
            carry, at = b"", block_at
        text = carry + data
        last = max(text.rfind(b"\n"), text.rfind(b"\r"))
        if skips:
            first = min((i for i in (text.find(b"\n"), text.find(b"\r")) if i >= 0), default=-1)
            if first < 0:
                carry, at = b"", after
                continue
            text, at, skips = text[first + 1 :], at + first + 1, False
            last -= first + 1
        if last >= 0:
            yield at, _cleaned(text[:last])
            carry, at = text[last + 1 :], at + last + 1
        else:
            carry = text
        if len(carry) > LONGEST_LINE_BYTES:
            yield at, _cleaned(carry[:LONGEST_LINE_BYTES])
            carry, at, skips = b"", after, True
        if at >= end:
            return
    if carry and not skips:
        yield at, _cleaned(carry)


def _cleaned(text: bytes) -> bytes:
    """Use line feeds as the only line ends. NULs stay, because positions count them."""
    return text.replace(b"\r", b"\n") if b"\r" in text else text


def last_progress(fd: int, start: int, end: int) -> tuple[int, int | None]:
    """Return (position of the line before the last progress line, last iteration logged).

    Returns (start, None) if there is none near the end. The line before the last, because one rank may report its
    failure while the logging rank finishes the iteration.
    """
    begin = max(start, end - _PROGRESS_WITHIN_BYTES)
    places: list[int] = []
    iteration: int | None = None
    upper = end
    while upper > begin and len(places) < 2:
        lower = max(begin, upper - (256 << 10))
        data = b"".join(piece for _, piece in blocks(fd, lower, upper))
        if len(data) == upper - lower and any(mark in data for mark in _PROGRESS_MARKS):
            for match in reversed(list(_PROGRESS.finditer(data))):
                places.append(lower + match.start())
                number = next((group for group in match.groups() if group), None)
                if number and len(number) < 16 and iteration is None:
                    iteration = int(number)
                if len(places) == 2:
                    break
        upper = lower
    return (places[-1] if places else start), iteration


def text_around(fd: int, begin: int, before_bytes: int, after_bytes: int) -> tuple[list[str], list[str]]:
    """Return (whole lines before the one that begins at `begin`, that line and the following ones), as text."""
    at = max(0, begin - before_bytes)
    data = b"".join(piece for _, piece in blocks(fd, at, begin + after_bytes))
    before, after = data[: begin - at], data[begin - at :]
    return [_text(line) for line in _cleaned(before).split(b"\n")[:-1]], [
        _text(line) for line in _cleaned(after).split(b"\n")
    ]


def _text(line: bytes) -> str:
    return without_nuls(line[:LONGEST_LINE_BYTES]).decode(errors="replace")


def line_numbers(fd: int, begins: list[int], ends_at: float) -> dict[int, int]:
    """Return position -> line number, from 1, for as many lines as time allows."""
    found: dict[int, int] = {}
    number, at = 1, 0
    for begin in sorted(set(begins)):
        for after, data in blocks(fd, at, begin):
            if time.monotonic() > ends_at:
                return found
            number += data.count(b"\n")
            at = after
        at = begin
        found[begin] = number
    return found
