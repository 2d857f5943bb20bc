"""Copies that are not where [backup] wants them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from opsctl.watch.detector import Settings
from opsctl.watch.detectors import backups
from opsctl.watch.finding import Finding, Severity
from opsctl.watch.seen import FarCopies, LostCopy, Overdue
from opsctl.watch.snapshot import Snapshot
from tests.unit.watch.jobs import NOW

TO = "s3://bucket/tr11"


def found(*overdue: Overdue, lost: tuple[LostCopy, ...] = ()) -> list[Finding]:
    return backups.find(Snapshot(NOW, copies=(FarCopies(TO, overdue, lost),)), Settings("demo", "us"))


def saved(iteration: int, hours: float) -> Overdue:
    return Overdue(f"global_step{iteration}", NOW - timedelta(hours=hours))


def test_what_the_next_daily_backup_will_send_is_no_finding() -> None:
    assert found() == [] and found(saved(20, 47), saved(10, 48)) == []


def test_what_two_daily_backups_have_missed_is_told_once_for_the_place_by_the_oldest() -> None:
    (one,) = found(saved(30, 1), saved(20, 49), saved(10, 240))
    assert (one.key, one.severity) == (f"backups:{TO}", Severity.WARNING)
    assert one.text == f"global_step10 and 1 more should be backed up at {TO} and are not"
    assert one.since == NOW - timedelta(hours=240) and one.evidence == ("global_step10 was saved 10.0 days ago",)
    (alone,) = found(saved(20, 49))
    assert alone.text == f"global_step20 should be backed up at {TO} and is not"


def test_a_lost_copy_is_worse_where_it_was_the_only_one() -> None:
    here, gone = LostCopy("global_step20", "has 3 bytes", True), LostCopy("global_step10", "is not there", False)
    (one,) = found(lost=(here,))
    assert (one.key, one.severity) == (f"backups:{TO} lost", Severity.WARNING)
    assert one.text == f"the backup of global_step20 at {TO} no longer counts" and one.evidence == ("has 3 bytes",)
    (two,) = found(lost=(here, gone))
    assert two.severity is Severity.CRITICAL
    assert two.text == f"the backup of global_step10 at {TO} no longer counts (and 1 more)"
    assert two.evidence == ("is not there", "global_step10: whole nowhere else, as the ledger has it")
    (three,) = found(lost=(LostCopy("global_step10", "is not there", False, True),))
    assert three.severity is Severity.WARNING


def data(**of_data: Any) -> list[Finding]:
    return backups.find(Snapshot(NOW, copies=(FarCopies(TO, **of_data),)), Settings("demo", "us"))


def test_data_sets_that_two_daily_backups_have_missed_are_told() -> None:
    assert data(data_wanted_since=NOW - timedelta(hours=48)) == []
    (one,) = data(data_wanted_since=NOW - timedelta(hours=49))
    assert (one.key, one.severity) == (f"backups:{TO} data", Severity.WARNING)
    assert one.text == f"the data sets should be backed up at {TO} and are not"


def test_lost_data_sets_are_worse_where_nobody_has_them() -> None:
    (one,) = data(data_lost=LostCopy("data sets", "has 3 bytes", True))
    assert (one.key, one.severity) == (f"backups:{TO} data lost", Severity.WARNING)
    assert one.text == f"the backup of data sets at {TO} no longer counts"
    assert one.todo == "opsctl backup --data sends them again"
    (two,) = data(data_lost=LostCopy("data sets", "has 3 bytes", False))
    assert two.severity is Severity.CRITICAL
