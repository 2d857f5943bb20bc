"""A training that runs and logs nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from opsctl.logs.records import Measured
from opsctl.watch.detector import Settings
from opsctl.watch.detectors import silence
from opsctl.watch.snapshot import Snapshot
from tests.unit.watch.jobs import NOW, RUNNING
from trainer.formats.training_line import TrainingLine


def silent(minutes: float, typical_s: float, running_for_s: int = 7805, state: str = "RUNNING") -> list[str]:
    """What is found when the log was last written so many minutes ago."""
    last = TrainingLine(iteration=500, total_iterations=1000, consumed_samples=16000, loss=2.5)
    measured = Measured(last_iteration=last, seconds_per_iteration=typical_s)
    job = replace(RUNNING, state=state, started_at=NOW - timedelta(seconds=running_for_s))
    log_written_at = NOW - timedelta(minutes=minutes)
    snapshot = Snapshot(NOW, (job,), measured=measured, log_written_at=log_written_at)
    return [one.text for one in silence.find(snapshot, Settings("demo", "the team"))]


def test_a_running_training_that_logs_nothing_is_found() -> None:
    assert silent(30, 60.0) == ["no iteration logged for 30 min, 30 times what one takes: opsctl logs"]
    assert silent(180, 60.0) == ["no iteration logged for 2.2 h, 130 times what one takes: opsctl logs"]


def test_slow_iterations_are_not_silence_and_neither_is_a_fresh_start() -> None:
    assert silent(9, 1.0) == []  # ten minutes at least
    assert silent(30, 200.0) == []  # ten iterations at least
    assert silent(600, 1.0, running_for_s=120) == []


def test_what_does_not_run_may_be_silent() -> None:
    assert silent(30, 60.0, state="COMPLETING") == silent(30, 60.0, state="SUSPENDED") == []
