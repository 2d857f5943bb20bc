"""Threads that check something repeatedly while a step runs, and write lines to the training log.

The step never waits for them. A file system or a Slurm that does not answer must delay neither the step's output nor
the job's signals.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Self


class Watch:
    """Collects lines for the training log, which only the main thread writes."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._trouble = ""

    def news(self) -> list[str]:
        """Return the lines since the last call."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def report(self, line: str) -> None:
        """Add a line."""
        self._lines.append(line)

    def report_trouble(self, trouble: str, recovered: str = "") -> None:
        """Add `trouble` when it is new, and `recovered` when it is over, that is, empty."""
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble or recovered:
                self.report(trouble or recovered)


class WatchThread(Watch):
    """Calls `check` until it is stopped."""

    #: How long `stop` waits for a check that does not end, seconds.
    end_wait_s = 10.0

    def __init__(self, name: str, first_s: float = 0.0) -> None:
        """first_s: before the first check."""
        super().__init__()
        self.first_s = first_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def check(self) -> float | None:
        """Check once; return the seconds until the next time, None for no more."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Check no more. A check that hangs is left behind."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(self.end_wait_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        wait_s: float | None = self.first_s
        while wait_s is not None and not self._wait(wait_s):
            wait_s = self.check()

    def _wait(self, seconds: float) -> bool:
        return self._stopped.wait(seconds)


def in_background(function: Callable[[], object], name: str) -> threading.Thread | None:
    """Call a function once in a thread of its own; None where the machine gives no more threads."""
    thread = threading.Thread(target=function, name=name, daemon=True)
    with contextlib.suppress(RuntimeError):
        thread.start()
        return thread
    return None
