"""Many seeds, in two processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable

from benchmarks.desk.score import Score
from benchmarks.desk.simulate import simulate
from opsctl.monitoring.registry import DETECTORS

PROCESSES = 2


def simulate_all(seeds: Iterable[int], days: float, roughness: float = 1.0) -> tuple[Score, float]:
    """All seeds' scores together, and the seconds that it took."""
    began = time.monotonic()
    total = Score()
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        for one in pool.imap(_simulate, [(seed, days, roughness) for seed in seeds]):
            total += one
    return total, time.monotonic() - began


def _simulate(what: tuple[int, float, float]) -> Score:
    seed, days, roughness = what
    return simulate(seed, days, DETECTORS, roughness=roughness)
