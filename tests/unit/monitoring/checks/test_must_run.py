"""A run that only waits though nodes are set aside for it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from opsctl.monitoring.check import Detector, Settings, run_detectors
from opsctl.monitoring.checks.training import must_run
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.attempts.events import Attempt
from opsctl.run.config.schema import WatchTable
from opsctl.run.state.kill_switch import KillSwitchState
from opsctl.slurm.types import Job
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING, WAITING_FOR_TASK, pending

MUST = Settings("tr11", "Eng WG", watch=WatchTable(must_run=True))


def found(*jobs: Job, settings: Settings = MUST, idle_min: float = 60, **seen: object) -> list[Finding]:
    """Return what is found when the last attempt ended so many minutes ago."""
    ended = NOW - timedelta(minutes=idle_min)
    last = Attempt(number=1, id="a", job_id=1, opened_at=ended - timedelta(hours=20), closed_at=ended, reason="failed")
    snapshot = Snapshot(NOW, jobs, was_submitted=True, attempts=(last,), **seen)  # type: ignore[arg-type]
    detector: Detector = must_run
    return run_detectors([detector], snapshot, settings)


def test_an_hour_in_the_queue_is_critical_and_calls_the_team() -> None:
    (finding,) = found(pending("Resources"))
    assert (finding.severity, finding.alert) == (Severity.CRITICAL, "Eng WG")
    assert missing(finding.text, "tr11", "60 min") == []
    assert finding.since == NOW - timedelta(minutes=60) and finding.todo


def test_the_minutes_between_two_tasks_are_none_and_neither_is_a_run_that_runs() -> None:
    assert found(pending("Resources"), idle_min=20) == found(RUNNING, WAITING_FOR_TASK) == []


def test_who_never_said_so_who_stopped_it_and_the_end_are_none() -> None:
    assert found(pending("Resources"), settings=Settings("tr11", "us")) == []
    assert found(pending("Resources"), kill_switch=KillSwitchState(Path("/k"), True, True)) == []
    assert found(pending("Resources"), is_finished=True) == found() == []


def test_without_slurm_nobody_knows() -> None:
    (finding,) = found(blind="Slurm does not answer")
    assert finding.severity is Severity.UNKNOWN and finding.key == "must_run"
