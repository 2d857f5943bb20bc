"""Alerts that do not get through."""

from __future__ import annotations

from datetime import timedelta

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.services import channels
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.state.alert_log import ChannelSeen
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW

WELL = ChannelSeen("slack")


def failing(minutes: float, name: str = "mail") -> ChannelSeen:
    return ChannelSeen(name, NOW - timedelta(minutes=minutes), "connection refused", waiting=3)


def found(*seen: ChannelSeen) -> list[tuple[Severity, str]]:
    return [(one.severity, one.text) for one in channels.find(Snapshot(NOW, channels=seen), Settings("demo", "us"))]


def test_a_channel_that_fails_for_an_hour_is_found_and_a_restarting_server_is_not() -> None:
    ((severity, text),) = found(WELL, failing(60))
    assert severity is Severity.WARNING and missing(text, "mail") == []
    assert found(WELL, failing(40)) == found(WELL) == found() == []


def test_a_day_and_nobody_left_to_be_told_are_critical() -> None:
    assert [severity for severity, _ in found(WELL, failing(25 * 60))] == [Severity.CRITICAL]
    assert [severity for severity, _ in found(failing(60, "a"), failing(60, "b"))] == [Severity.CRITICAL] * 2


def test_a_dropped_alert_is_found_though_the_channel_works_again() -> None:
    ((severity, text),) = found(ChannelSeen("mail", detail="550", dropped=2))
    assert severity is Severity.WARNING and missing(text, "mail", "2 alerts") == []
