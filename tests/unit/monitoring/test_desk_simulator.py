"""The checks over simulated weeks: what the simulator shows them is what a real run would, and none has gone blind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.desk.planting import plant_all
from benchmarks.desk.score import Score
from benchmarks.desk.shapes import HOUR_S
from benchmarks.desk.simulate import simulate
from benchmarks.desk.snapshots import Viewer
from benchmarks.desk.table import claimed
from benchmarks.desk.world import World
from opsctl.monitoring.gather.records import SERIES_LINES
from opsctl.monitoring.registry import DETECTORS
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.measurements import recent, recent_and_series


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_the_simulated_log_reads_as_a_file_of_the_same_lines(seed: int, tmp_path: Path) -> None:
    world = World(seed)
    plant_all(world)
    world.log.text = []
    viewer = Viewer(world)
    paths = RunPaths(tmp_path)
    paths.main_log.parent.mkdir(parents=True)
    shown = 0
    for hour in range(24, 24 * 12, 11):
        world.clock.run_until(hour * HOUR_S)
        snapshot = viewer.look()
        paths.main_log.write_text("".join(f"{line}\n" for line in world.log.text))
        seen = snapshot.measured, (snapshot.series, snapshot.guarded)
        assert seen == recent_and_series(paths, SERIES_LINES)
        assert snapshot.measured == recent(paths)
        shown += snapshot.measured.last_iteration is not None
    assert shown > 15


def test_a_seed_gives_the_same_days_every_time() -> None:
    def told(score: Score) -> object:
        return [(one.trouble.kind.name, one.trouble.starts_at, one.is_reported) for one in score.outcomes], score.false

    assert told(simulate(4, 3, DETECTORS[:3])) == told(simulate(4, 3, DETECTORS[:3]))


@pytest.mark.parametrize(
    ("days_of_seed", "least_kinds"),
    [({2: 14}, 10), pytest.param({2: 45, 3: 45}, 30, marks=pytest.mark.nightly)],
    ids=["14 days", "90 days"],
)
def test_each_planted_trouble_is_reported_and_few_reports_are_false(
    days_of_seed: dict[int, int], least_kinds: int
) -> None:
    total = Score()
    for seed, days in days_of_seed.items():
        total += simulate(seed, days, DETECTORS, gap_days=(0.3, 0.6))
    planted = Counter(one.trouble.kind.name for one in total.outcomes)
    reported = Counter(one.trouble.kind.name for one in total.outcomes if one.is_reported)
    assert len(planted) >= least_kinds
    assert not [kind.name for kind in claimed() if planted[kind.name] and not reported[kind.name]]
    assert total.reported_share(claimed()) >= 0.9
    assert total.false_in_14_days <= 2.0


def test_a_world_without_checks_reports_nothing() -> None:
    total = simulate(5, 5, ())
    assert total.outcomes
    assert not any(one.is_reported for one in total.outcomes)
    assert not total.false
