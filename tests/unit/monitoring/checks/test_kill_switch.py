"""A kill switch that keeps the training from running."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.records import kill_switch
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.state.kill_switch import KillSwitchState
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING


def found(switch: KillSwitchState | None) -> list[str]:
    """Return the texts about this switch."""
    snapshot = Snapshot(NOW, (RUNNING,), kill_switch=switch)
    return [one.text for one in kill_switch.find(snapshot, Settings("demo", "the team"))]


def test_a_triggered_kill_switch_is_found_with_who_and_why() -> None:
    (text,) = found(KillSwitchState(Path("/o/kill-switch"), True, True, by="ana", why="bad data"))
    assert missing(text, "triggered", "ana", "bad data") == []


def test_one_that_is_not_triggered_or_cannot_be_seen_is_nothing_to_say() -> None:
    assert found(KillSwitchState(Path("/o/kill-switch"), True, False)) == found(None) == []


def test_one_that_was_left_for_a_day_is_critical_with_its_age() -> None:
    def severity(hours: float, at_zone: bool = True, is_finished: bool = False) -> Severity:
        at = NOW - timedelta(hours=hours)
        switch = KillSwitchState(Path("/k"), True, True, at=at if at_zone else at.replace(tzinfo=None))
        snapshot = Snapshot(NOW, kill_switch=switch, is_finished=is_finished)
        (finding,) = kill_switch.find(snapshot, Settings("demo", "the team"))
        assert finding.since == (at if at_zone else None)
        return finding.severity

    assert (severity(23), severity(25)) == (Severity.WARNING, Severity.CRITICAL)
    assert severity(25, at_zone=False) == severity(25, is_finished=True) == Severity.WARNING
