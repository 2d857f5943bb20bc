"""Real trackers of the installed codecarbon, used as in older programs: one in every rank, each with its own file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.diagnosis.carbon.report import Inputs, report_of
from opsctl.diagnosis.carbon.trackers import Placed, Placing, counted_once, find, placed

#: Ranks as BigScience's were: codecarbon started at the beginning, flushed at a checkpoint, stopped at the end. None
#: sleeps before all have started, and none stops before all have flushed.
RANKS = """
import multiprocessing, sys, time
from codecarbon import OfflineEmissionsTracker
def rank(number, folder, together):
    tracker = OfflineEmissionsTracker(
        output_dir=folder, output_file=f"emissions-{number:03}.csv", country_iso_code="FRA", log_level="critical",
        allow_multiple_runs=True, measure_power_secs=1,
    )
    tracker.start()
    together.wait()
    time.sleep(SLEEP_S)
    tracker.flush()
    together.wait()
    tracker.stop()
forking = multiprocessing.get_context("fork")
together = forking.Barrier(3)
ranks = [forking.Process(target=rank, args=(number, sys.argv[1], together)) for number in range(3)]
for one in ranks: one.start()
for one in ranks: one.join()
sys.exit(max(abs(one.exitcode) for one in ranks))
"""
SLEEP_S = 2.5
#: codecarbon writes when a stretch has ended in whole seconds.
COARSE_S = 1.0


@pytest.mark.nightly
def test_ranks_of_one_node_that_each_counted_all_of_it_come_to_one_node(tmp_path: Path) -> None:
    """Use memory of 1 kW and a CPU of 0 kW. The start of each rank takes an unknown time."""
    environment = {**os.environ, "CODECARBON_FORCE_RAM_POWER": "1000", "CODECARBON_FORCE_CPU_POWER": "0"}
    environment = {name: value for name, value in environment.items() if not name.startswith("SLURM")}
    script = RANKS.replace("SLEEP_S", str(SLEEP_S))
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, check=True, stderr=subprocess.DEVNULL
    )

    found = find([tmp_path])
    assert found is not None
    assert [len((tmp_path / f"emissions-00{rank}.csv").read_text().splitlines()) for rank in range(3)] == [3, 3, 3]
    assert (len(found.readings), found.problems) == (3, ())
    trackers = placed(found.readings, Placing(ranks_per_node=3))
    once = sum(counted_once(span for one in trackers for span in one.spans).values())
    assert once == pytest.approx(added_up_moment_by_moment(trackers), rel=1e-3)
    each = [one.kwh for one in found.readings]
    # While all three slept each has counted the whole node: two thirds of that are not there any more.
    least_kw = min(one.kwh / one.duration_s for one in found.readings)
    assert sum(each) - once >= 2 * (SLEEP_S - COARSE_S) * least_kw
    told = report_of(found, Inputs(placing=Placing(ranks_per_node=3)))
    assert (told.nodes, told.trackers) == (1, 3)
    assert told.kg == pytest.approx(told.kwh * sum(one.emissions_kg for one in found.readings) / sum(each))


def added_up_moment_by_moment(trackers: list[Placed]) -> float:
    """Return the kWh of one node at the mean power of the running trackers, summed over many moments."""
    began, ended = min(one.stretch[0] for one in trackers), max(one.stretch[1] for one in trackers)
    steps = 50_000
    total = 0.0
    for step in range(steps):
        at = began + (ended - began) * (step + 0.5) / steps
        powers = [one.reading.kwh / one.reading.duration_s for one in trackers if one.stretch[0] <= at < one.stretch[1]]
        total += sum(powers) / len(powers) if powers else 0.0
    return total * (ended - began) / steps
