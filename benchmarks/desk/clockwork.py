"""Time in a simulated world: what happens when, in seconds since its beginning."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

#: A process of the simulation: a generator that yields the time of its next step.
Life = Iterator[float]


class Process:
    """A life that can be ended from outside."""

    def __init__(self, life: Life) -> None:
        self._life: Life | None = life

    def stop(self) -> None:
        """It does nothing more."""
        self._life = None

    def go_on(self) -> float | None:
        """Live until it waits again; when it wants to go on, None at its end."""
        if self._life is None:
            return None
        try:
            return next(self._life)
        except StopIteration:
            self._life = None
            return None


class Clockwork:
    """Processes in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._number = itertools.count()
        self._due: list[tuple[float, int, Process]] = []

    def start(self, life: Life, at: float | None = None) -> Process:
        """Let `life` begin at that time, now without one."""
        process = Process(life)
        self._put(self.now if at is None else at, process)
        return process

    def at(self, when: float, act: Callable[[], object]) -> Process:
        """Do one thing at that time."""

        def life() -> Life:
            act()
            return
            yield 0.0

        return self.start(life(), when)

    def run_until(self, end: float) -> None:
        """All that happens up to then."""
        while self._due and self._due[0][0] <= end:
            self.now, _, process = heapq.heappop(self._due)
            when = process.go_on()
            if when is not None:
                self._put(when, process)
        self.now = end

    def _put(self, when: float, process: Process) -> None:
        heapq.heappush(self._due, (max(when, self.now), next(self._number), process))
