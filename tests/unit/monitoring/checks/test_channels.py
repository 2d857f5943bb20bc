"""Alerts that do not get through."""

from __future__ import annotations

from datetime import timedelta

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.services import channels
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Channel, Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW

WELL = Channel("slack")


def failing(minutes: float, name: str = "mail") -> Channel:
    return Channel(name, NOW - timedelta(minutes=minutes), "connection refused", waiting=3)


def found(*seen: Channel) -> list[tuple[Severity, str]]:
    return [(one.severity, one.text) for one in channels.find(Snapshot(NOW, channels=seen), Settings("demo", "us"))]


def test_a_channel_that_fails_for_an_hour_is_found_and_a_restarting_server_is_not() -> None:
    ((severity, text),) = found(WELL, failing(60))
    assert severity is Severity.WARNING and missing(text, "mail", "60 min") == []
    assert found(WELL, failing(40)) == found(WELL) == found() == []


def test_a_day_and_nobody_left_to_be_told_are_critical() -> None:
    assert [severity for severity, _ in found(WELL, failing(25 * 60))] == [Severity.CRITICAL]
    assert [severity for severity, _ in found(failing(60, "a"), failing(60, "b"))] == [Severity.CRITICAL] * 2
