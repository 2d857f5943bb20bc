"""Nodes whose clocks are off."""

from __future__ import annotations

from opsctl.watch.detector import Settings
from opsctl.watch.detectors import clocks
from opsctl.watch.seen import Clock
from opsctl.watch.snapshot import Snapshot
from tests.unit.watch.jobs import NOW


def found(*off_s: float) -> list[tuple[str, str]]:
    seen = tuple(Clock(f"n{number}", off, NOW) for number, off in enumerate(off_s))
    return [(one.key, one.text) for one in clocks.find(Snapshot(NOW, clocks=seen), Settings("demo", "us"))]


def test_a_clock_that_is_off_is_told_with_its_sign() -> None:
    assert found(0.2, 3600.0, -31.0) == [
        ("clocks:n1", "the clock of n1 is 3600 s ahead of the file server's"),
        ("clocks:n2", "the clock of n2 is 31 s behind the file server's"),
    ]


def test_a_reading_on_a_busy_server_is_none() -> None:
    assert found(20.0, -29.0) == found() == []


def test_many_are_one_finding() -> None:
    ((key, text),) = found(*(60.0 + n for n in range(8)), 0.0)
    assert key == "clocks:many" and text == "the clocks of 8 of 9 nodes are off, n7's by +67 s"
