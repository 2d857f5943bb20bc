"""Times that mean something: many buffers in turn, random data, the median, and the copy rate beside them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: What lies in the cache is not read from memory: buffers in turn have so many times its size.
_TIMES_THE_CACHE = 4
_WARM_UP, _TIMES, _ROUNDS = 10, 50, 3
_COPIED_BYTES = 1 << 30
#: Of the GPU's clock: some hundred microseconds, in which the slowest way has started all its kernels.
_CYCLES_TO_START_ONE = 500_000

Buffers = Sequence[Tensor | None]


@dataclass(frozen=True)
class Turns:
    """How often something is done, before it is timed and while it is."""

    warm_up: int = _WARM_UP
    times: int = _TIMES
    copied_bytes: int = _COPIED_BYTES


def median_s(work: Callable[..., Any], sets: Sequence[Buffers], turns: Turns, device: torch.device) -> float:
    """Seconds of one `work(*buffers)` on `device`, each time on the next of `sets`."""
    for turn in range(turns.warm_up):
        work(*sets[turn % len(sets)])
    timed = _timed_on_gpu if device.type == "cuda" else _timed_on_cpu
    return statistics.median(timed(work, sets, turns.times))


def in_turns(
    ways: Mapping[str, Callable[..., Any]], sets: Sequence[Buffers], device: torch.device, budget_s: float
) -> dict[str, float]:
    """Seconds of each way's `work(*buffers)`: the least of its medians, as ways take turns and other work may come by.

    budget_s: what one way's turn may take, or nearly; its first calls, which may compile, are not counted.
    """
    turns = {name: _fitting(work, sets, device, budget_s) for name, work in ways.items()}
    found: dict[str, float] = dict.fromkeys(ways, math.inf)
    for _ in range(_ROUNDS):
        for name, work in ways.items():
            found[name] = min(found[name], median_s(work, sets, turns[name], device))
    return found


def _fitting(work: Callable[..., Any], sets: Sequence[Buffers], device: torch.device, budget_s: float) -> Turns:
    """As many turns as fit into the budget, three at least."""
    once_s = median_s(work, sets, Turns(2, 3), device)
    times = min(_TIMES, max(3, int(budget_s / max(once_s, 1e-7))))
    return Turns(min(_WARM_UP, times), times)


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

    sets = buffer_sets(make, cache_bytes)
    return 2 * 4 * count / median_s(lambda source, target: target.copy_(source), sets, turns, device)


def cache_bytes(device: torch.device) -> int:
    """The GPU's second-level cache; a megabyte where there is none to ask."""
    if device.type != "cuda":
        return 1 << 20
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def _timed_on_gpu(work: Callable[..., Any], sets: Sequence[Buffers], times: int) -> list[float]:
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
    # All is handed over while the GPU waits: what is timed is how fast it computes, not how fast Python starts it.
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
