"""Files that the file system is about to remove."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.disk import purge
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Purge, Snapshot
from opsctl.run.config.schema import WatchTable
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW

OLD = Purge(
    "/scratch/run", 412, 2_300_000_000_000, NOW + timedelta(days=3), "/scratch/run/checkpoints/global_step1/a.pt"
)


def found(files: Purge | None) -> list[tuple[Severity, str, str]]:
    settings = Settings("demo", "us", watch=WatchTable(purge_days=30))
    return [(one.severity, one.key, one.text) for one in purge.find(Snapshot(NOW, purge=files), settings)]


def test_files_are_found_days_before_the_file_system_removes_them() -> None:
    ((severity, key, text),) = found(OLD)
    assert (severity, key) == (Severity.WARNING, "purge:/scratch/run")
    assert missing(text, "412", "/scratch/run", "2.3 TB", "3.0 days") == []


def test_the_last_day_and_the_latest_checkpoint_are_critical() -> None:
    assert found(replace(OLD, first_at=NOW + timedelta(hours=5)))[0][0] is Severity.CRITICAL
    assert found(replace(OLD, hits_latest=True))[0][0] is Severity.CRITICAL


def test_an_unfinished_walk_gives_a_minimum() -> None:
    assert missing(found(replace(OLD, is_all=False))[0][2], "at least 412") == []
    assert found(replace(OLD, files=0)) == found(None) == []
