"""Iterations that take longer than usual, and what only looks like it."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.speed import speed
from opsctl.monitoring.finding import Finding
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.attempts.events import Attempt
from opsctl.run.config.schema import WatchTable
from opsctl.run.logs.records import Measured
from tests.unit.monitoring.jobs import NOW, RUNNING
from tests.unit.monitoring.lines import lines, scaled
from trainer.formats.logs.training_line import TrainingLine

SETTINGS = Settings("tr11-176B-ml", "Eng WG")
#: 149 to 140 TFLOPs on 28 April 2022: one GPU of 384 was slow.
SLOW = 149 / 140


def found(series: tuple[TrainingLine, ...], settings: Settings = SETTINGS, **seen: object) -> list[Finding]:
    snapshot = Snapshot(NOW, (RUNNING,), series=series, log_written_at=NOW, **seen)  # type: ignore[arg-type]
    return speed.find(snapshot, settings)


def test_a_slow_gpu_of_bloom_is_found_within_an_hour_with_numbers_and_units() -> None:
    usual = lines(600)
    # 35 iterations are an hour.
    (finding,) = found(scaled(usual, -20, seconds_per_iteration=SLOW, tflops=1 / SLOW))
    usual_s, now_s = sorted(float(number) for number in re.findall(r"([\d.]+) s\b", finding.text))
    assert finding.key == "speed" and 104 < usual_s < 106 and 110 < now_s < 113
    assert any("TFLOPs per GPU" in line for line in finding.evidence) and "--exclude" in finding.todo


def test_it_stays_found_for_days_and_is_not_taken_for_usual() -> None:
    usual = lines(1000)
    for since in (-100, -400, -800):
        assert found(scaled(usual, since, seconds_per_iteration=SLOW)), since


def test_when_it_began_is_told_as_far_as_the_window_goes() -> None:
    series = scaled(lines(300), -20, seconds_per_iteration=SLOW)
    (finding,) = found(series, measured=Measured(last_iteration=series[-1]))
    assert finding.since is not None
    assert timedelta(minutes=30) < NOW - finding.since < timedelta(minutes=45)


@pytest.mark.parametrize(
    "series",
    [
        pytest.param(lines(600), id="as usual"),
        pytest.param(scaled(lines(600), -200, seconds_per_iteration=1.03), id="network noise"),
        pytest.param(scaled(lines(600), -9, seconds_per_iteration=1.5), id="few slow iterations"),
        pytest.param(lines(600, lambda n: {"seconds_per_iteration": 105 + 720 * (n == 595)}), id="an evaluation"),
        pytest.param(lines(600, lambda n: {"seconds_per_iteration": 400.0} if n % 200 < 2 else {}), id="restarts"),
        pytest.param(
            lines(
                600,
                lambda n: {
                    "global_batch_size": 192 + 16 * (n // 40),
                    "seconds_per_iteration": 105 * (192 + 16 * (n // 40) + 247) / (2048 + 247),
                },
            ),
            id="the ramp",
        ),
        pytest.param(scaled(lines(40), -20, seconds_per_iteration=1.5), id="too little to compare with"),
        pytest.param((), id="no log"),
    ],
)
def test_other_changes_of_speed_are_no_finding(series: tuple[TrainingLine, ...]) -> None:
    assert found(series) == []


def test_a_slow_node_in_the_ramp_is_held_against_batches_like_the_present_one() -> None:
    def ramp(place: int) -> dict[str, float]:
        batch = 192 + 16 * (place // 40)
        return {"global_batch_size": batch, "seconds_per_iteration": 105 * (batch + 247) / (2048 + 247)}

    assert found(lines(600, ramp)) == [] and found(scaled(lines(600, ramp), -30, seconds_per_iteration=1.4))


def test_who_allows_more_is_told_less() -> None:
    allowed = Settings("demo", "us", watch=WatchTable(slower_percent=15.0))
    assert found(scaled(lines(600), -100, seconds_per_iteration=SLOW), allowed) == []
    assert found(scaled(lines(600), -100, seconds_per_iteration=1.2), allowed)


def test_a_run_whose_iterations_vary_by_themselves_needs_more() -> None:
    noisy = lines(600, lambda n: {"seconds_per_iteration": 105.0 * (1 + 0.05 * ((n // 20) % 3))})
    assert found(noisy) == [] and found(scaled(noisy, -60, seconds_per_iteration=1.06)) == []
    assert found(scaled(noisy, -60, seconds_per_iteration=1.5))


def test_twice_the_nodes_is_another_speed() -> None:
    """On 4 July 2022 BLOOM went on on 24 nodes instead of 48."""
    halved = scaled(lines(600), -100, seconds_per_iteration=2.0)
    attempts = tuple(
        Attempt(number=n, id=str(n), job_id=n, nodes=tuple(f"n{k}" for k in range(nodes)), iteration_at_start=at)
        for n, nodes, at in ((1, 48, 30_000), (2, 24, 30_500))
    )
    assert found(halved) and found(halved, attempts=attempts) == []


def test_lines_that_stand_for_ten_iterations_each_are_enough_after_an_hour() -> None:
    series = lines(500, lambda _: {"seconds_per_iteration": 13.2}, step=10)
    assert found(scaled(series, -20, seconds_per_iteration=1.1)) and found(series) == []
