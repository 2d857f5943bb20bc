"""Limits of a transfer that all its workers share: its speed, the end of it, and how long one answer may take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

#: A slower connection counts as broken: a call that carries many bytes may take longer than a call that carries none.
_SLOWEST_BYTES_PER_S = 64 << 10


class Stopped(Exception):
    """The transfer has to end: another worker failed, or the user interrupted it."""


class NoAnswer(Exception):
    """No answer came in time."""


class Flow:
    """The limit over all workers, None for no limit. `reached` gets the number of bytes done so far."""

    def __init__(self, bytes_per_s: float | None = None, reached: Callable[[int], None] | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self._reached = reached
        self._lock = threading.Lock()
        self._free_at = time.monotonic()
        self._done = 0
        self._over = threading.Event()

    def take(self, count: int) -> None:
        """Wait until `count` more bytes may be moved. Raises Stopped."""
        wait_s = 0.0
        if self._bytes_per_s:
            with self._lock:
                now = time.monotonic()
                self._free_at = max(now, self._free_at) + count / self._bytes_per_s
                wait_s = self._free_at - now
        self.pause(wait_s)

    def pause(self, wait_s: float) -> None:
        """Wait. Raises Stopped, at once when the transfer ends."""
        if self._over.wait(wait_s) if wait_s > 0 else self._over.is_set():
            raise Stopped

    def done(self, count: int) -> None:
        """Count `count` more bytes as moved."""
        with self._lock:
            self._done += count
            if self._reached:
                self._reached(self._done)

    def stop(self) -> None:
        """Let every worker end at its next step."""
        self._over.set()


def limit_s(patience_s: float, count: int) -> float:
    """Return how many seconds an answer may take that carries, or follows on, `count` bytes."""
    return patience_s + count / _SLOWEST_BYTES_PER_S


def within(seconds: float, do: Callable[[], T]) -> T:
    """Return what `do` returns, or raise what it raises. Raises NoAnswer after `seconds`.

    `do` runs in a thread of its own, which is abandoned then and keeps no process from ending: a blocking call of a
    library cannot be ended from outside.
    """
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(do())
        except BaseException as error:
            found.set_exception(error)

    begun = time.monotonic()
    threading.Thread(target=run, name="store", daemon=True).start()
    try:
        return found.result(seconds)
    except TimeoutError:
        raise NoAnswer(f"no answer came in {time.monotonic() - begun:.0f} s") from None
