"""Nodes whose clocks are off."""

from __future__ import annotations

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.nodes import clocks
from opsctl.monitoring.snapshot import Clock, Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW


def found(*off_s: float) -> list[tuple[str, str]]:
    seen = tuple(Clock(f"n{number}", off, NOW) for number, off in enumerate(off_s))
    return [(one.key, one.text) for one in clocks.find(Snapshot(NOW, clocks=seen), Settings("demo", "us"))]


def test_a_wrong_clock_is_found_with_its_direction() -> None:
    (ahead, ahead_text), (behind, behind_text) = found(0.2, 3600.0, -31.0)
    assert (ahead, behind) == ("clocks:n1", "clocks:n2")
    assert missing(ahead_text, "n1", "3600 s", "ahead") == [] and missing(behind_text, "n2", "31 s", "behind") == []


def test_a_reading_on_a_busy_server_is_none() -> None:
    assert found(20.0, -29.0) == found() == []


def test_many_wrong_clocks_are_one_finding() -> None:
    ((key, text),) = found(*(60.0 + n for n in range(8)), 0.0)
    assert key == "clocks:many" and missing(text, "8 of 9", "n7", "+67 s") == []
