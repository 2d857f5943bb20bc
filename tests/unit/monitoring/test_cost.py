"""Test what one pass of all checks costs over a snapshot as large as they come."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from opsctl.monitoring.check import Settings, run_detectors
from opsctl.monitoring.registry import DETECTORS
from opsctl.monitoring.snapshot import Clock, Snapshot, Space
from opsctl.run.attempts.events import Attempt
from opsctl.run.logs.records import Measured
from opsctl.slurm.nodes import Node
from tests.unit.monitoring.jobs import NOW, RUNNING, WAITING_FOR_CHAIN, WAITING_FOR_TASK
from tests.unit.monitoring.lines import lines

#: Of the time that pickle takes for the same snapshot, on the same core in turn; it takes about half of it.
MOST_WRITINGS = 4.0


def large() -> Snapshot:
    """1,000 iterations, 400 nodes, 1,000 attempts, 20 days of hourly looks at two file systems."""
    series = lines(1000)
    names = tuple(f"n{number}" for number in range(400))
    attempts = tuple(
        Attempt(
            number=number,
            id=str(number),
            job_id=number,
            nodes=names,
            opened_at=NOW - timedelta(hours=2 + 4 * (1000 - number)),
            closed_at=NOW - timedelta(hours=4 * (1000 - number)),
            reason="exit-duration",
            iteration_at_start=30 * number,
        )
        for number in range(1000)
    )
    spaces = [
        Space(name, NOW - timedelta(hours=hours), 10**14 - hours * 10**10, 2 * 10**14, 10**6, 5 * 10**6)
        for hours in range(480, -1, -1)
        for name in ("/scratch", "/store")
    ]
    return Snapshot(
        NOW,
        (RUNNING, WAITING_FOR_TASK, WAITING_FOR_CHAIN),
        was_submitted=True,
        measured=Measured(last_iteration=series[-1], seconds_per_iteration=105.0),
        log_written_at=NOW,
        series=series,
        attempts=attempts,
        nodes=tuple(Node(name, "allocated", "") for name in names),
        clocks=tuple(Clock(name, 0.1, NOW) for name in names),
        spaces=tuple(spaces[-2:]),
        space_history=tuple(spaces[:-2]),
    )


def seconds_of(do: Callable[[], object]) -> float:
    begun = time.process_time()
    do()
    return time.process_time() - begun


@pytest.mark.nightly
def test_a_pass_over_the_largest_snapshot_costs_little_more_than_pickling_it() -> None:
    snapshot, settings = large(), Settings("demo", "us", nodes=4, global_batch_size=2048)
    took = [
        (seconds_of(lambda: run_detectors(DETECTORS, snapshot, settings)), seconds_of(lambda: pickle.dumps(snapshot)))
        for _ in range(9)
    ]
    passes, writings = zip(*took, strict=True)
    assert min(passes) <= MOST_WRITINGS * min(writings), took
