"""File systems that will be full soon, and those that only go up and down."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.disk import filling
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Snapshot, Space
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW

TB = 10**12


def found(used_tb: Callable[[float], float], every_h: float = 1, hours: float = 96) -> list[tuple[Severity, str]]:
    """used_tb: of how many hours ago, negative; the quota is 400 TB."""
    looks = [
        Space("/scratch", NOW + timedelta(hours=at), int(used_tb(at) * TB), 400 * TB)
        for at in (-hours + every_h * n for n in range(int(hours / every_h) + 1))
    ]
    snapshot = Snapshot(NOW, spaces=(looks[-1],), space_history=tuple(looks[:-1]))
    return [(one.severity, one.text) for one in filling.find(snapshot, Settings("demo", "us"))]


def saw(at: float) -> float:
    """A rotation that removes once a day what was written: 18.4 TB of checkpoints."""
    return 18.4 * ((at / 24) % 1)


def test_steady_growth_is_found_before_the_disk_is_full() -> None:
    ((severity, text),) = found(lambda at: 330 + 18.4 * at / 24)
    assert severity is Severity.WARNING and missing(text, "/scratch", "bytes", "70 TB") == []


def test_what_a_rotation_removes_each_day_is_no_growth() -> None:
    assert found(lambda at: 340 + saw(at)) == found(lambda at: 340 + saw(at + 7)) == []


def test_one_jump_is_no_pace() -> None:
    assert found(lambda at: 340 + 15 * (at > -10)) == []


def test_hours_are_enough_where_hours_are_left() -> None:
    ((severity, text),) = found(lambda at: 370 + 4 * max(0.0, at + 6))
    assert severity is Severity.CRITICAL and "in 90 min" in text


def test_room_for_months_and_a_shrinking_use_are_none() -> None:
    assert found(lambda at: 100 + 2 * at / 24) == found(lambda at: 399 - at / 24) == []


def test_one_look_a_day_is_enough_after_some_days() -> None:
    assert found(lambda at: 330 + 18.4 * at / 24, every_h=24, hours=24 * 4) != []
    assert found(lambda at: 330 + 18.4 * at / 24, every_h=24, hours=24) == []


def test_before_a_day_has_passed_nobody_knows_a_days_growth() -> None:
    assert found(lambda at: 330 + 40 * at / 24, hours=10) == []


def test_what_stops_being_told_or_cannot_be_seen_now_is_none() -> None:
    earlier = Space("/scratch", NOW - timedelta(hours=1), 390 * TB, 400 * TB)
    seen = Snapshot(NOW, spaces=(Space("/scratch", NOW, problem="no answer"),), space_history=(earlier,) * 30)
    assert filling.find(seen, Settings("demo", "us")) == []
