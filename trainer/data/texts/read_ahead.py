"""Several sources read at once, by threads, what they give taken in order: one is unpacked while another is at work."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

_LOOK_EVERY_S = 0.1


def in_order(sources: Sequence[Callable[[], Iterator[T]]], at_once: int, most_ahead: int) -> Generator[T]:
    """All that the first source gives, then the second, and so on; up to `at_once` of them are read at a time.

    most_ahead: of each source, how much may wait to be taken. What a source raises is raised when it is its turn.
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
    """What comes after the last: why it was the last."""

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
                # With a time-out: a signal in the moment before a wait without one would be heard only after it.
                one = self._queue.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                continue
            if isinstance(one, _End):
                if one.error is not None:
                    raise one.error
                return
            yield one
