"""Measure the speed of a node's memory, and check that it returns what was written.

Each core copies an array that it has touched first, so that the kernel places its pages on the core's NUMA node. Bytes
moved are those read and those written.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from trainer.core.memory_limit import memory_lines
from trainer.formats.attempt.node_samples import Effort
from trainer.launcher.probing.parts import Tell, seconds_of

_ARRAY_BYTES = 32 << 20
_MOST_SHARE = 0.05  # of the free memory, that copying may take
_CHUNK_BYTES = 256 << 20


def measure(tell: Tell, effort: Effort) -> None:
    """GB/s of copying by all cores; with `effort.verified_share`, bytes that did not come back as they were written."""
    import numpy

    cores = len(os.sched_getaffinity(0))
    each = min(_ARRAY_BYTES, int(free_bytes() * _MOST_SHARE) // (2 * cores))
    elements = max(each // 8, 1)
    with ThreadPoolExecutor(cores) as threads:
        sources = list(threads.map(lambda _: numpy.ones(elements), range(cores)))
        targets = list(threads.map(lambda _: numpy.zeros(elements), range(cores)))

        seconds = seconds_of(lambda: list(threads.map(numpy.copyto, targets, sources)), effort.window_s)
    tell("copy_gbs", 2 * 8 * elements * cores / seconds / 1e9)
    sources.clear()
    targets.clear()
    if effort.verified_share:
        _verify(tell, int(free_bytes() * effort.verified_share))


def free_bytes() -> int:
    """Return the bytes that the kernel can provide without swapping."""
    return memory_lines().get("MemAvailable", 1 << 30)


def _verify(tell: Tell, wanted_bytes: int) -> None:
    """Fill memory with numbers that say where they are, then read all of it."""
    import numpy

    elements = _CHUNK_BYTES // 8
    chunks = [
        numpy.arange(number * elements, (number + 1) * elements) for number in range(wanted_bytes // _CHUNK_BYTES)
    ]
    wrong = sum(
        int(numpy.count_nonzero(chunk != numpy.arange(number * elements, (number + 1) * elements)))
        for number, chunk in enumerate(chunks)
    )
    tell("verified_gib", len(chunks) * _CHUNK_BYTES / (1 << 30))
    tell("wrong_words", wrong)
