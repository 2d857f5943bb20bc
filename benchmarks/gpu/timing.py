"""Timing of operations on a device: rotating buffers, the median of many calls."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Buffers in turn have this many times the cache's size, so that each is read from memory.
_TIMES_THE_CACHE = 4
_WARM_UP, _TIMES = 10, 50
_COPIED_BYTES = 1 << 31
#: Cycles of the GPU's clock in which the slowest implementation has started all its kernels.
_CYCLES_TO_START_ONE = 500_000
Buffers = Sequence[Tensor | None]


@dataclass(frozen=True)
class Turns:
    """The repetitions, before the timing and during it."""

    warm_up: int = _WARM_UP
    times: int = _TIMES
    copied_bytes: int = _COPIED_BYTES


def median_s(work: Callable[..., Any], sets: Sequence[Buffers], turns: Turns, device: torch.device) -> float:
    """Return the median seconds of `work(*buffers)` on `device`, each time on the next of `sets`."""
    for turn in range(turns.warm_up):
        work(*sets[turn % len(sets)])
    timed = _timed_on_gpu if device.type == "cuda" else _timed_on_cpu
    return statistics.median(timed(work, sets, turns.times))


def buffer_sets(make: Callable[[], Buffers], cache_bytes: int) -> list[Buffers]:
    """Return enough sets, at least two, for none to be in the cache when its turn comes."""
    first = make()
    size = sum(one.numel() * one.element_size() for one in first if one is not None)
    return [first, *(make() for _ in range(max(1, math.ceil(_TIMES_THE_CACHE * cache_bytes / size))))]


def copy_s(moved_bytes: int, device: torch.device, cache_bytes: int, turns: Turns) -> float:
    """Return the seconds of a copy in memory that reads and writes `moved_bytes`, both counted."""
    count = moved_bytes // 8

    def make() -> Buffers:
        return torch.rand(count, device=device), torch.empty(count, device=device)

    sets = buffer_sets(make, cache_bytes)
    return median_s(lambda source, target: target.copy_(source), sets, turns, device)


def cache_bytes(device: torch.device) -> int:
    """Return the bytes of the GPU's second-level cache; a megabyte on a CPU."""
    if device.type != "cuda":
        return 1 << 20
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def _timed_on_gpu(work: Callable[..., Any], sets: Sequence[Buffers], times: int) -> list[float]:
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
    # The GPU waits until all work is queued, so that Python's speed is not measured.
    torch.cuda._sleep(times * _CYCLES_TO_START_ONE)
    for turn, (begin, end) in enumerate(events):
        begin.record()
        work(*sets[turn % len(sets)])
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1000 for begin, end in events]


def _timed_on_cpu(work: Callable[..., Any], sets: Sequence[Buffers], times: int) -> list[float]:
    seconds = []
    for turn in range(times):
        begin = time.perf_counter()
        work(*sets[turn % len(sets)])
        seconds.append(time.perf_counter() - begin)
    return seconds
