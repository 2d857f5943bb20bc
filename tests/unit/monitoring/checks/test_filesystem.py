"""File systems and quotas that are too full."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from opsctl.monitoring.check import Settings, can_tell
from opsctl.monitoring.checks.disk import filesystem
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Snapshot, Space
from opsctl.run.config.schema import WatchTable
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW

TB = 10**12
SCRATCH = Space("/scratch", NOW, 85 * TB, 100 * TB, 2_000_000, 5_000_000, how="quota")


def found(space: Space, *history: Space, percent: float = 90.0) -> list[Finding]:
    settings = Settings("demo", "us", watch=WatchTable(full_percent=percent))
    return filesystem.find(Snapshot(NOW, spaces=(space,), space_history=history), settings)


def used(percent: float, hours_ago: float = 0) -> Space:
    return replace(SCRATCH, used_bytes=int(percent * TB), at=NOW - timedelta(hours=hours_ago))


def test_full_percent_is_the_limit() -> None:
    assert found(SCRATCH) == []
    (finding,) = found(SCRATCH, percent=85.0)
    assert (finding.key, finding.severity) == ("filesystem:/scratch bytes", Severity.WARNING)
    assert missing(finding.text, "/scratch", "85.0 %", "85 TB of 100 TB") == [] and "quota" in finding.evidence[0]


def test_half_of_the_remaining_percentage_is_critical_and_inodes_count_too() -> None:
    assert [one.severity for one in found(used(94.9))] == [Severity.WARNING]
    assert [one.severity for one in found(used(95.1))] == [Severity.CRITICAL]
    (finding,) = found(replace(SCRATCH, used_inodes=4_600_000))
    assert finding.key == "filesystem:/scratch inodes"
    assert missing(finding.text, "92.0 %", "inodes", "4.6M of 5M") == []


def test_a_quota_that_reports_only_percentages_is_read() -> None:
    shares = Space("/store", NOW, percent=93.0, inode_percent=12.0, how="quota")
    (finding,) = found(shares)
    assert finding.key == "filesystem:/store bytes" and "93.0 %" in finding.text


def test_a_rotation_that_takes_it_just_below_does_not_end_it() -> None:
    assert found(used(89.2)) == []
    assert [one.severity for one in found(used(89.2), used(91, 3))] == [Severity.WARNING]
    assert found(used(87.9), used(91, 3)) == [] and found(used(89.2), used(91, 30)) == []


def test_one_that_cannot_be_looked_at_is_unknown_and_ends_nothing_of_it() -> None:
    (finding,) = found(Space("/scratch", NOW, problem="quota: no answer within 30 s"))
    assert finding.severity is Severity.UNKNOWN and finding.key == "filesystem:/scratch"
    assert not can_tell("filesystem:/scratch bytes", [finding], {"filesystem"})
    assert can_tell("filesystem:/store bytes", [finding], {"filesystem"})
