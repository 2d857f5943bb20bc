"""A pseudo-cron that is late, was stopped, or cannot be seen."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from opsctl.monitoring.check import Settings, run_detectors
from opsctl.monitoring.checks.services import cron
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import CronSeen, Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW

SEEN = CronSeen("/cron", is_started=True, carried_by="job 9 of ana", heartbeat_at=NOW - timedelta(minutes=50))


def found(seen: CronSeen | None) -> list[tuple[Severity, str]]:
    findings = run_detectors([cron], Snapshot(NOW, cron=seen), Settings("demo", "us"))
    return [(one.severity, one.text) for one in findings]


def test_two_periods_without_a_tick_are_critical() -> None:
    dead = replace(SEEN, heartbeat_at=NOW - timedelta(minutes=121))
    ((severity, text),) = found(dead)
    assert severity is Severity.CRITICAL and missing(text, "/cron", "2.0 h", "60 min") == []


def test_a_tick_that_waits_in_the_queue_for_most_of_an_hour_is_none() -> None:
    assert found(replace(SEEN, heartbeat_at=NOW - timedelta(minutes=118))) == found(SEEN) == found(None) == []


def test_a_short_period_is_no_time_for_slurm() -> None:
    trial = replace(SEEN, period_s=20.0, heartbeat_at=NOW - timedelta(seconds=45))
    assert found(trial) == [] and found(replace(trial, heartbeat_at=NOW - timedelta(seconds=55))) != []


def test_a_cron_that_never_ticked_is_late_from_its_first_due_time() -> None:
    fresh = replace(SEEN, heartbeat_at=None, next_due_at=NOW - timedelta(minutes=70))
    ((severity, text),) = found(fresh)
    assert severity is Severity.CRITICAL and missing(text, "/cron", "never") == []
    assert found(replace(fresh, next_due_at=NOW)) == found(replace(fresh, next_due_at=None)) == []


def test_a_stopped_cron_is_a_warning_and_one_that_never_started_is_not() -> None:
    ((severity, text),) = found(replace(SEEN, is_started=False))
    assert severity is Severity.WARNING and missing(text, "/cron", "stopped") == []
    assert found(replace(SEEN, is_started=False, heartbeat_at=None)) == []


def test_one_that_cannot_be_seen_is_unknown() -> None:
    ((severity, text),) = found(replace(SEEN, problem="/cron: Permission denied"))
    assert severity is Severity.UNKNOWN and "/cron: Permission denied" in text
