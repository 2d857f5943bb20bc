"""Times on a GPU that mean something: many buffers in turn, random data, the median, and the copy rate beside them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: What lies in the cache is not read from memory: buffers in turn have so many times its size.
_TIMES_THE_CACHE = 4
_WARM_UP, _TIMES = 10, 50
_COPIED_BYTES = 1 << 30

Buffers = Sequence[Tensor | None]


@dataclass(frozen=True)
class Turns:
    """How often something is done, before it is timed and while it is."""

    warm_up: int = _WARM_UP
    times: int = _TIMES
    copied_bytes: int = _COPIED_BYTES


def median_s(work: Callable[..., Any], sets: Sequence[Buffers], turns: Turns) -> float:
    """Seconds of one `work(*buffers)`, each time on the next of `sets`."""
    for turn in range(turns.warm_up):
        work(*sets[turn % len(sets)])
    timed = _timed_on_gpu if torch.cuda.is_available() else _timed_on_cpu
    return statistics.median(timed(work, sets, turns.times))


def buffer_sets(make: Callable[[], Buffers], cache_bytes: int) -> list[Buffers]:
    """As many sets as are needed for none to be in the cache when its turn comes; two at least."""
    first = make()
    size = sum(one.numel() * one.element_size() for one in first if one is not None)
    return [first, *(make() for _ in range(max(1, math.ceil(_TIMES_THE_CACHE * cache_bytes / size))))]


def copy_rate(device: torch.device, cache_bytes: int, turns: Turns) -> float:
    """Bytes a second that a copy from memory to memory reads and writes, both counted."""
    count = turns.copied_bytes // 4

    def make() -> Buffers:
        return torch.rand(count, device=device), torch.empty(count, device=device)

    return 2 * 4 * count / median_s(lambda source, target: target.copy_(source), buffer_sets(make, cache_bytes), turns)


def cache_bytes(device: torch.device) -> int:
    """The GPU's second-level cache; a megabyte where there is none to ask."""
    if device.type != "cuda":
        return 1 << 20
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def _timed_on_gpu(work: Callable[..., Any], sets: Sequence[Buffers], times: int) -> list[float]:
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
    for turn, (begin, end) in enumerate(events):
        begin.record()
        work(*sets[turn % len(sets)])
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1000 for begin, end in events]


def _timed_on_cpu(work: Callable[..., Any], sets: Sequence[Buffers], times: int) -> list[float]:
    """For a rehearsal alone."""
    from time import perf_counter

    seconds = []
    for turn in range(times):
        begin = perf_counter()
        work(*sets[turn % len(sets)])
        seconds.append(perf_counter() - begin)
    return seconds
