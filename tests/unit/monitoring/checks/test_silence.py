"""A training that runs and logs nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from msgspec import structs

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.speed import silence
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.attempts.events import Attempt
from opsctl.run.config.schema import WatchTable
from opsctl.run.logs.records import Measured
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING
from trainer.formats.logs.training_line import TrainingLine
from trainer.recipe.save_schedule import SavePhase, SaveSchedule

#: Saves after every 100 iterations, evaluations after every 70.
SETTINGS = Settings("demo", "the team", saves=SaveSchedule((SavePhase(100),)), evaluates_every=70)


def silent(
    minutes: float,
    typical_s: float,
    running_for_s: int = 7805,
    state: str = "RUNNING",
    settings: Settings = SETTINGS,
    iteration: int = 511,
    **known: Any,
) -> list[str]:
    """Return what is found when the log was last written so many minutes ago."""
    last = TrainingLine(iteration=iteration, total_iterations=1000, consumed_samples=16000, loss=2.5)
    measured = Measured(last_iteration=last, seconds_per_iteration=typical_s, **known)
    job = structs.replace(RUNNING, state=state, started_at=NOW - timedelta(seconds=running_for_s))
    log_written_at = NOW - timedelta(minutes=minutes)
    snapshot = Snapshot(NOW, (job,), measured=measured, log_written_at=log_written_at)
    return [one.text for one in silence.find(snapshot, settings)]


def test_a_running_training_that_logs_nothing_is_found() -> None:
    for minutes, length in (30, "30 min"), (180, "2.2 h"):
        (text,) = silent(minutes, 60.0)
        assert missing(text, length, "60 s", "opsctl logs") == []


def test_a_stalled_training_with_fast_iterations_is_found_after_a_minute() -> None:
    (text,) = silent(7, 0.01)
    assert missing(text, "7 min", "0.01 s", "opsctl logs") == []
    assert silent(1.1, 0.01) and not silent(0.9, 0.01)  # a minute at least
    assert silent(2.1, 6.0) and not silent(1.9, 6.0)  # twenty iterations
    rare = replace(SETTINGS, saves=SaveSchedule((SavePhase(1000),)), evaluates_every=0)
    assert silent(5.1, 1.0, settings=rare, iterations_per_line=100)  # three lines
    assert not silent(4.9, 1.0, settings=rare, iterations_per_line=100)


def test_the_first_lines_of_a_training_that_logs_rarely_are_no_standstill() -> None:
    # Of a single line no one knows how many iterations it stands for; the run file does.
    rare = replace(SETTINGS, saves=SaveSchedule((SavePhase(1000),)), evaluates_every=0, log_interval=100)
    assert not silent(4.9, 1.0, settings=rare, iteration=100) and silent(5.1, 1.0, settings=rare, iteration=100)
    # A save that comes before the next line.
    early = replace(rare, saves=SaveSchedule((SavePhase(150),)))
    assert not silent(9, 1.0, settings=early, iteration=100)
    assert not silent(9, 1.0, settings=replace(rare, evaluates_every=150), iteration=100)


def test_a_pause_of_a_length_that_nobody_knows_yet_is_no_standstill() -> None:
    assert not silent(9, 0.01, iteration=500) and silent(11, 0.01, iteration=500)  # its first save
    assert not silent(9, 0.01, iteration=490) and silent(11, 0.01, iteration=490)  # its first evaluation
    assert not silent(9, 0.01, iteration=480, iterations_per_line=20)  # one before the next line
    assert not silent(9, 0.01, is_saving=True)  # a save that was asked for
    assert not silent(9, 0.01, settings=Settings("of another program", "us"))
    known: dict[str, Any] = {"longest_save_seconds": 60.0, "longest_evaluation_seconds": 120.0}
    assert not silent(3.9, 0.01, iteration=500, **known) and silent(4.1, 0.01, iteration=500, **known)


def test_a_job_between_two_attempts_is_taken_to_start() -> None:
    closed = Attempt(number=1, id="a", job_id=RUNNING.job_id, closed_at=NOW - timedelta(minutes=7), reason="signal")
    fast = Measured(last_iteration=TrainingLine(iteration=511, total_iterations=1000), seconds_per_iteration=0.01)
    assert hang(7, fast, known_settings=SETTINGS, attempts=(closed,)) is None
    assert hang(7, fast, known_settings=SETTINGS) is not None


def test_what_a_slow_look_takes_after_it_has_read_the_log_is_no_silence() -> None:
    fast = Measured(last_iteration=TrainingLine(iteration=511, total_iterations=1000), seconds_per_iteration=0.01)
    read_at = NOW - timedelta(minutes=2)
    assert hang(2.5, fast, known_settings=SETTINGS, log_read_at=read_at) is None


def test_slow_iterations_are_not_silence_and_neither_is_a_fresh_start() -> None:
    assert silent(0.9, 1.0) == []  # a minute at least
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
    """Return what is found when nothing has been logged for so many minutes by a task that began before."""
    job = structs.replace(RUNNING, started_at=NOW - timedelta(minutes=begun_min))
    settings = known.pop("known_settings", Settings("tr11", "us", watch=WatchTable(**known.pop("watch", {}))))
    snapshot = Snapshot(NOW, (job,), measured=measured, log_written_at=NOW - timedelta(minutes=minutes), **known)
    return next(iter(silence.find(snapshot, settings)), None)


def test_the_deadlock_in_an_evaluation_of_bloom_is_found_in_half_an_hour_not_in_eighteen_hours() -> None:
    assert hang(29) is None  # an evaluation, ten iterations and a save
    found, hours_later = hang(31), hang(18 * 60)
    assert found is not None and found.severity is Severity.WARNING and "request requeue" in found.todo
    assert found.since == NOW - timedelta(minutes=31) and missing(str(found.evidence), "iteration 45000") == []
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
    assert found is not None and missing(found.text, "2.1 h", "opsctl logs") == []
