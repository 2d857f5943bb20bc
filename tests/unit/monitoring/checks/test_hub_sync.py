"""A sync to the hub that has fallen behind."""

from __future__ import annotations

from datetime import timedelta

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.checkpoints import hub_sync
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Snapshot, Unsent
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW


def found(kind: str, waits: timedelta, sent: timedelta | None = None) -> list[Finding]:
    last = None if sent is None else NOW - sent
    unsent = Unsent(kind, 3, NOW - waits, last, f"{kind}/first")
    return hub_sync.find(Snapshot(NOW, unsent=(unsent,)), Settings("demo", "us"))


def test_files_that_missed_three_syncs_are_found_by_kind() -> None:
    (one,) = found("logs", timedelta(hours=5), timedelta(hours=6))
    assert (one.severity, one.key) == (Severity.WARNING, "hub_sync:logs")
    assert missing(one.text, "logs", "5.0 h") == [] and one.since == NOW - timedelta(hours=2)
    assert (
        missing(one.evidence[0], "3", "logs/first") == [] and f"{NOW - timedelta(hours=6):%Y-%m-%d}" in one.evidence[1]
    )


def test_what_the_next_sync_takes_is_nothing_to_tell() -> None:
    assert found("logs", timedelta(hours=2.9), timedelta(days=9)) == []
    assert hub_sync.find(Snapshot(NOW), Settings("demo", "us")) == []


def test_checkpoints_may_wait_for_three_days() -> None:
    assert found("checkpoints", timedelta(hours=70)) == []
    (one,) = found("checkpoints", timedelta(hours=73))
    assert "checkpoints" in one.text and one.key == "hub_sync:checkpoints"
