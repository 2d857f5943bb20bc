"""Time a piece of work, as the median of many repetitions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

_FEWEST = 5


def seconds_of(work: Callable[[], object], window_s: float) -> float:
    """Seconds of one `work`: the median over `window_s`, at least five times, after one that does not count.

    The median and not the best: a node that is held up again and again has moments in which it is not.
    """
    work()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _FEWEST or time.perf_counter() - began < window_s:
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return statistics.median(times)
