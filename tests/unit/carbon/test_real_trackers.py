"""Real trackers of the installed codecarbon, as older programs had them: one in every rank, each with its own file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.carbon.found import find
from opsctl.carbon.overlap import counted_once
from opsctl.carbon.placed import Placing, placed
from opsctl.carbon.report import Asked, report_of

#: A rank as BigScience's were: codecarbon started at the beginning, flushed at a checkpoint, stopped at the end.
RANK = """
import sys, time
from codecarbon import OfflineEmissionsTracker
folder, rank = sys.argv[1:]
tracker = OfflineEmissionsTracker(
    output_dir=folder, output_file=f"emissions-{int(rank):03}.csv", country_iso_code="FRA", log_level="critical",
    allow_multiple_runs=True, measure_power_secs=1,
)
print("ready", flush=True)
sys.stdin.readline()
tracker.start()
print("in", flush=True)
sys.stdin.readline()
time.sleep(4)
tracker.flush()
print("flushed", flush=True)
sys.stdin.readline()
tracker.stop()
"""


def test_ranks_of_one_node_that_each_counted_all_of_it_come_to_one_node(tmp_path: Path) -> None:
    """Memory that takes 1 kW and a CPU that takes nothing: what it must come to follows from the clock alone."""
    environment = {**os.environ, "CODECARBON_FORCE_RAM_POWER": "1000", "CODECARBON_FORCE_CPU_POWER": "0"}
    environment = {name: value for name, value in environment.items() if not name.startswith("SLURM")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        for rank in range(3)
    ]
    for said in ("ready\n", "in\n", "flushed\n"):
        for process in ranks:
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == said
        for process in ranks:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
    assert [process.wait(60) for process in ranks] == [0, 0, 0]

    found = find([tmp_path])
    assert found is not None
    assert [len((tmp_path / f"emissions-00{rank}.csv").read_text().splitlines()) for rank in range(3)] == [3, 3, 3]
    assert (len(found.readings), found.problems) == (3, ())
    trackers = placed(found.readings, Placing(ranks_per_node=3))
    began, ended = min(one.stretch[0] for one in trackers), max(one.stretch[1] for one in trackers)
    once = sum(counted_once(span for one in trackers for span in one.spans).values())
    # Timestamps are whole seconds, so a stretch may begin and end one second elsewhere.
    assert once == pytest.approx((ended - began) / 3600, abs=2.0 / 3600)
    each = [one.kwh for one in found.readings]
    assert max(each) <= once * 1.05 + 2.0 / 3600
    assert once < sum(each) * 0.75
    told = report_of(found, Asked(placing=Placing(ranks_per_node=3)))
    assert (told.nodes, told.trackers) == (1, 3)
    assert told.kg == pytest.approx(told.kwh * sum(one.emissions_kg for one in found.readings) / sum(each))
