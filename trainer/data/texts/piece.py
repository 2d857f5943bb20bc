"""Pieces of the input, and reading several sources ahead in order."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

#: A piece ends after a whole line, row or file with at least this many bytes.
PIECE_BYTES = 2 << 20


class Skipped(msgspec.Struct):
    """Counts of skipped documents, by reason. not_text: not UTF-8, or with NUL bytes. examples: at most three names."""

    empty: int = 0
    not_text: int = 0
    unreadable: int = 0
    examples: list[str] = msgspec.field(default_factory=list)

    def note(self, reason: str, what: str) -> None:
        """Count one under `reason`. The first three that are not empty are kept as examples."""
        setattr(self, reason, getattr(self, reason) + 1)
        if reason != "empty" and len(self.examples) < 3:
            self.examples.append(what)

    def add(self, other: Skipped) -> None:
        """Add the counts of later documents."""
        self.empty += other.empty
        self.not_text += other.not_text
        self.unreadable += other.unreadable
        self.examples = [*self.examples, *other.examples][:3]

    def words(self) -> str:
        """Return the counts as text: `3 empty, 1 not UTF-8 text (a.bin)`, or nothing."""
        named = ((self.empty, "empty"), (self.not_text, "not UTF-8 text"), (self.unreadable, "unreadable"))
        text = ", ".join(f"{count:,} {reason}" for count, reason in named if count)
        return f"{text} ({', '.join(self.examples)})" if self.examples else text


class Readable(Protocol):
    """The interface of every piece, in any process."""

    def texts(self, skipped: Skipped) -> list[str]:
        """Return the documents, none of them empty. Skipped ones are counted in `skipped`. Raises DataError."""


@dataclass(frozen=True)
class FileFacts:
    """Facts about a file that change when it changes."""

    path: str
    size_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, path: str) -> FileFacts:
        """Return the present facts of `path`. Raises OSError."""
        found = os.stat(path)  # noqa: PTH116 -- a name may be any bytes
        return cls(path, found.st_size, found.st_mtime_ns)


def shown(path: str | bytes | os.PathLike[str]) -> str:
    """Return a path for one line of a terminal, whatever bytes its name has."""
    text = os.fsdecode(path)
    return text if text.isprintable() else ascii(text)


T = TypeVar("T")

_LOOK_EVERY_S = 0.1


def in_order(sources: Sequence[Callable[[], Iterator[T]]], at_once: int, most_ahead: int) -> Generator[T]:
    """Yield everything from the first source, then the second, and so on, reading up to `at_once` of them at a time.

    most_ahead: results of each source that may wait. A source's error is raised when its results are due.
    """
    stop = threading.Event()
    waiting: deque[_Reading[T]] = deque()
    begun = 0
    try:
        while begun < len(sources) or waiting:
            while begun < len(sources) and len(waiting) < at_once:
                waiting.append(_Reading(sources[begun], most_ahead, stop))
                begun += 1
            yield from waiting.popleft()
    finally:
        stop.set()


class _End:
    """The end of a source, with its error."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Reading(Generic[T]):
    def __init__(self, source: Callable[[], Iterator[T]], most_ahead: int, stop: threading.Event) -> None:
        self._queue: queue.Queue[T | _End] = queue.Queue(most_ahead)
        self._stop = stop
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def _read(self, source: Callable[[], Iterator[T]]) -> None:
        error: BaseException | None = None
        try:
            for one in source():
                if not self._put(one):
                    return
        except BaseException as raised:
            error = raised
        self._put(_End(error))

    def _put(self, one: T | _End) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(one, timeout=_LOOK_EVERY_S)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[T]:
        while True:
            try:
                # With a time-out: a signal just before a wait without one would be handled only after it.
                one = self._queue.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                continue
            if isinstance(one, _End):
                if one.error is not None:
                    raise one.error
                return
            yield one
