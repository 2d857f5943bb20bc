"""What all workers of one transfer share: the limit on its speed, the word to stop, and how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Stopped(Exception):
    """The transfer is to end: another worker met what ends it, or somebody interrupted."""


class Flow:
    """One limit over all workers: `bytes_per_s`, None for none. `reached` is told the bytes that are done so far."""

    def __init__(self, bytes_per_s: float | None = None, reached: Callable[[int], None] | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self._reached = reached
        self._lock = threading.Lock()
        self._free_at = time.monotonic()
        self._done = 0
        self._over = threading.Event()

    def take(self, count: int) -> None:
        """Wait until `count` more bytes may go over the line. Raises Stopped."""
        wait_s = 0.0
        if self._bytes_per_s:
            with self._lock:
                now = time.monotonic()
                self._free_at = max(now, self._free_at) + count / self._bytes_per_s
                wait_s = self._free_at - now
        self.pause(wait_s)

    def pause(self, wait_s: float) -> None:
        """Do nothing for so long. Raises Stopped, at once when the transfer ends."""
        if self._over.wait(wait_s) if wait_s > 0 else self._over.is_set():
            raise Stopped

    def done(self, count: int) -> None:
        """`count` more bytes are where they belong."""
        with self._lock:
            self._done += count
            if self._reached:
                self._reached(self._done)

    def stop(self) -> None:
        """Let every worker end at its next step."""
        self._over.set()
