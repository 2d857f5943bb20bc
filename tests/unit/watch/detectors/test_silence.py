"""A training that runs and logs nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from opsctl.attempts.events import Attempt
from opsctl.logs.records import Measured
from opsctl.runs.schema import WatchTable
from opsctl.watch.detector import Settings
from opsctl.watch.detectors import silence
from opsctl.watch.finding import Finding, Severity
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


#: BLOOM: 105 s an iteration, evaluations of 12 minutes, saves of 40 s.
BLOOM = Measured(
    last_iteration=TrainingLine(iteration=45_000, total_iterations=128_728),
    seconds_per_iteration=105.0,
    longest_evaluation_seconds=720.0,
    longest_save_seconds=40.0,
)


def hang(minutes: float, measured: Measured = BLOOM, begun_min: float = 6000, **known: Any) -> Finding | None:
    """What is found when nothing has been logged for so many minutes by a task that began before."""
    job = replace(RUNNING, started_at=NOW - timedelta(minutes=begun_min))
    settings = Settings("tr11", "us", watch=WatchTable(**known.pop("watch", {})))
    snapshot = Snapshot(NOW, (job,), measured=measured, log_written_at=NOW - timedelta(minutes=minutes), **known)
    return next(iter(silence.find(snapshot, settings)), None)


def test_the_deadlock_in_an_evaluation_of_bloom_is_found_in_half_an_hour_not_in_eighteen_hours() -> None:
    assert hang(29) is None  # an evaluation, ten iterations and a save
    found, hours_later = hang(31), hang(18 * 60)
    assert found is not None and found.severity is Severity.WARNING and "request requeue" in found.todo
    assert found.since == NOW - timedelta(minutes=31) and "the last was iteration 45000" in found.evidence
    assert hours_later is not None and hours_later.severity is Severity.CRITICAL


def test_a_start_has_half_an_hour_more_until_its_first_iteration() -> None:
    assert hang(200, begun_min=55) is None and hang(200, begun_min=65) is not None
    # Lines of the start are newer than the task, the iteration is the last checkpoint's.
    attempt = Attempt(number=1, id="a", job_id=RUNNING.job_id, iteration_at_start=45_000)
    assert hang(45, attempts=(attempt,)) is None and hang(45) is not None


def test_who_says_how_long_is_told_then() -> None:
    assert hang(6, watch={"silent_most": "5:00"}) is not None and hang(120, watch={"silent_most": "3:00:00"}) is None


def test_a_first_start_that_never_logs_an_iteration_is_found_after_two_hours() -> None:
    assert hang(1, Measured(), begun_min=110) is None
    found = hang(1, Measured(), begun_min=125)
    assert found is not None and found.text == "it has run for 2.1 h and no iteration was ever logged: opsctl logs"
