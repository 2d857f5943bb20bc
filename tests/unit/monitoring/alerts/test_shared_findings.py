"""What is found in every run alike is told once."""

from __future__ import annotations

from opsctl.monitoring.alerts.shared_findings import Ear, told_once
from opsctl.monitoring.finding import Finding, Severity

DEAD = Finding("cron", Severity.CRITICAL, "the pseudo-cron is dead")
BLIND = Finding("cron", Severity.UNKNOWN, "the cron folder cannot be read")
SILENT = Finding("silence", Severity.CRITICAL, "no line for 3 h")
TEAM, OTHERS = ("file:~/.slack",), ("file:~/.other",)


def test_of_many_runs_with_the_same_channels_the_first_tells_that_the_cron_is_dead() -> None:
    found = [[DEAD], [SILENT, DEAD], [DEAD]]
    assert told_once(found, [Ear(TEAM)] * 3, {"cron"}) == [[DEAD], [SILENT], []]


def test_every_set_of_channels_is_told() -> None:
    assert told_once([[DEAD]] * 3, [Ear(TEAM), Ear(OTHERS), Ear(TEAM)], {"cron"}) == [[DEAD], [DEAD], []]


def test_a_run_that_has_told_it_goes_on_with_it_also_behind_others() -> None:
    ears = [Ear(TEAM), Ear(TEAM, ("cron",)), Ear(TEAM)]
    assert told_once([[DEAD]] * 3, ears, {"cron"}) == [[], [DEAD], []]


def test_nothing_ends_where_it_was_told_because_the_check_is_blind() -> None:
    ears = [Ear(TEAM), Ear(TEAM, ("cron",)), Ear(TEAM, ("cron?",))]
    assert told_once([[BLIND]] * 3, ears, {"cron"}) == [[], [BLIND], [BLIND]]


def test_what_is_a_runs_own_is_told_by_each() -> None:
    assert told_once([[SILENT]] * 2, [Ear(TEAM)] * 2, {"cron"}) == [[SILENT]] * 2
