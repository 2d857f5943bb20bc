"""One pass over a log's bytes for the lines that a table of rules means, in bounded time and memory.

Lines repeat: a gigabyte of a training's log has a few thousand shapes, digits aside. Each block's digits are taken out
and its lines put into a set; only a shape that was not seen before is looked at word by word, so the pass costs what
taking out digits and splitting cost. Lines that mean something are looked at again each time, up to a number.
The newest part is read first, so that what time or size forbid to read is the oldest.

Every collection here has a limit. Of lines with the same words in them the newest and the oldest are kept, so that no
flood of one kind hides another kind or the first line of its own.
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

#: Looked at in one go, newest first: so few that the newest lines are seen whatever time the others take.
_WINDOW_BYTES = 2 << 20
#: Of a line its beginning counts: a file that is no log, or a progress bar, may never end one.
LONGEST_LINE_BYTES = 8 << 10
#: How much of a log is read at most, its newest part.
MOST_BYTES = 2 << 30
#: Lines of one shape that are kept, and lines in all.
_MOST_ALIKE, _MOST_HITS, _MOST_HITS_BYTES = 1500, 12_000, 16 << 20
#: Lines with the same words that are kept also beyond that: the newest, and the oldest. How many sets of words differ.
_NEWEST, _OLDEST, _MOST_KINDS = 64, 16, 64
#: Words of a line that tell its kind.
_MOST_WORDS = 6
#: What is kept of shapes that mean nothing; more are forgotten, and looked at again.
_MOST_SHAPES_BYTES = 24 << 20
_DIGITS = b"0123456789"
#: In a tree of words, where one ends.
_ENDS = b""
#: A line of a training that goes on, whosever it is, with the iteration.
_PROGRESS = re.compile(
    rb"iteration[ =]+(\d+) ?/ *\d+ ?\||iteration=\s*(\d+)/|\bstep[:= ]+(\d+)\b[^\n]{0,80}\bloss"
    rb"|\{'loss': |[Ii]ter(?:ation)?[:= ]+(\d+)\b[^\n]{0,80}\bloss|global_step[:= ]+(\d+)\b[^\n]{0,120}loss"
)
_PROGRESS_MARKS = (b"iteration", b"loss")
_PROGRESS_WITHIN_BYTES = 64 << 20


@dataclass(frozen=True)
class Hit:
    """A line with a rule's word in it."""

    begin: int  # where in the file
    line: bytes


@dataclass
class Scan:
    """What a pass found."""

    hits: list[Hit] = field(default_factory=list)  # in the file's order
    begin: int = 0  # where what was read begins
    end: int = 0
    is_whole: bool = True  # whether all that was asked for was read


def scan(
    fd: int,
    start: int,
    end: int,
    rules: Rules,
    ends_at: float,
    extra: tuple[bytes, ...] = (),
    most_bytes: int | None = None,
) -> Scan:
    """The lines from `start` to `end` in `fd` with a word of `rules` in them, or of `extra`.

    No more than the newest `most_bytes`, MOST_BYTES unless said, and none once `time.monotonic()` is `ends_at`.
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
    """What finds any of `words`, as the tree of their beginnings: a tenth of the time of a search for each of them."""
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
    """What was seen so far, over all windows."""

    words: re.Pattern[bytes]  # one search for all of them, see _any_of
    ends_at: float
    is_cut: bool = False  # whether a window was left before its end
    shapes: set[bytes] = field(default_factory=set)
    shapes_bytes: int = 0
    alike: Counter[bytes] = field(default_factory=Counter)  # of kept lines
    first: dict[bytes, Hit] = field(default_factory=dict)  # shapes of which enough is kept -> their oldest line
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
        """The first words of the line; none in one that means nothing."""
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
        """All lines that were kept, in the file's order."""
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
    """The line of that index in `text`, which stands at `position`."""
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
    """Lines ended by line ends alone; NULs stay, positions count them."""
    return text.replace(b"\r", b"\n") if b"\r" in text else text


def last_progress(fd: int, start: int, end: int) -> tuple[int, int | None]:
    """(where the line before the last line of a training that goes on begins, the last iteration logged).

    (start, None) where there is none near the end. The one before the last: a rank may fail, and say so, while the one
    that logs comes to the end of its iteration.
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
    """(whole lines before the one that begins at `begin`, that one and those after it), as text."""
    at = max(0, begin - before_bytes)
    data = b"".join(piece for _, piece in blocks(fd, at, begin + after_bytes))
    before, after = data[: begin - at], data[begin - at :]
    return [_text(line) for line in _cleaned(before).split(b"\n")[:-1]], [
        _text(line) for line in _cleaned(after).split(b"\n")
    ]


def _text(line: bytes) -> str:
    return without_nuls(line[:LONGEST_LINE_BYTES]).decode(errors="replace")


def line_numbers(fd: int, begins: list[int], ends_at: float) -> dict[int, int]:
    """Where lines begin -> their numbers, from 1; without those that time does not allow to count up to."""
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
