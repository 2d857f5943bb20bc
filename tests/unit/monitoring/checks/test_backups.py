"""Copies that are not where [backup] wants them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.checkpoints import backups
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import FarCopies, LostCopy, Overdue, Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW

TO = "s3://bucket/tr11"


def found(*overdue: Overdue, lost: tuple[LostCopy, ...] = ()) -> list[Finding]:
    return backups.find(Snapshot(NOW, copies=(FarCopies(TO, overdue, lost),)), Settings("demo", "us"))


def saved(iteration: int, hours: float) -> Overdue:
    return Overdue(f"global_step{iteration}", NOW - timedelta(hours=hours))


def test_what_the_next_daily_backup_will_send_is_no_finding() -> None:
    assert found() == [] and found(saved(20, 47), saved(10, 48)) == []


def test_checkpoints_missed_by_two_daily_backups_are_one_finding_that_names_the_oldest() -> None:
    (one,) = found(saved(30, 1), saved(20, 49), saved(10, 240))
    assert (one.key, one.severity) == (f"backups:{TO}", Severity.WARNING)
    assert missing(one.text, "global_step10", "1 more", TO) == []
    assert one.since == NOW - timedelta(hours=240)
    assert missing(one.evidence[0], "global_step10", "10.0 days") == []
    (alone,) = found(saved(20, 49))
    assert missing(alone.text, "global_step20", TO) == [] and "more" not in alone.text


def test_a_lost_copy_is_critical_if_it_was_the_only_one() -> None:
    here, gone = LostCopy("global_step20", "has 3 bytes", True), LostCopy("global_step10", "is not there", False)
    (one,) = found(lost=(here,))
    assert (one.key, one.severity) == (f"backups:{TO} lost", Severity.WARNING)
    assert missing(one.text, "global_step20", TO) == [] and one.evidence == ("has 3 bytes",)
    (two,) = found(lost=(here, gone))
    assert two.severity is Severity.CRITICAL
    assert missing(two.text, "global_step10", TO, "1 more") == []
    assert two.evidence[0] == "is not there" and "global_step10" in two.evidence[1]
    (three,) = found(lost=(LostCopy("global_step10", "is not there", False, True),))
    assert three.severity is Severity.WARNING


def data(**of_data: Any) -> list[Finding]:
    return backups.find(Snapshot(NOW, copies=(FarCopies(TO, **of_data),)), Settings("demo", "us"))


def test_data_sets_missed_by_two_daily_backups_are_found() -> None:
    assert data(data_wanted_since=NOW - timedelta(hours=48)) == []
    (one,) = data(data_wanted_since=NOW - timedelta(hours=49))
    assert (one.key, one.severity) == (f"backups:{TO} data", Severity.WARNING)
    assert TO in one.text


def test_lost_data_sets_are_critical_if_no_other_copy_exists() -> None:
    (one,) = data(data_lost=LostCopy("data sets", "has 3 bytes", True))
    assert (one.key, one.severity) == (f"backups:{TO} data lost", Severity.WARNING)
    assert missing(one.text, "data sets", TO) == [] and "opsctl backup --data" in one.todo
    (two,) = data(data_lost=LostCopy("data sets", "has 3 bytes", False))
    assert two.severity is Severity.CRITICAL
