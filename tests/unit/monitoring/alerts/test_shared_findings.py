"""Test that a finding of all runs is sent once."""

from __future__ import annotations

from opsctl.monitoring.alerts.handle import Audience, reported_once
from opsctl.monitoring.finding import Finding, Severity

DEAD = Finding("cron", Severity.CRITICAL, "the pseudo-cron is dead")
BLIND = Finding("cron", Severity.UNKNOWN, "the cron folder cannot be read")
SILENT = Finding("silence", Severity.CRITICAL, "no line for 3 h")
TEAM, OTHERS = ("file:~/.slack",), ("file:~/.other",)


def test_of_many_runs_with_the_same_channels_the_first_tells_that_the_cron_is_dead() -> None:
    found = [[DEAD], [SILENT, DEAD], [DEAD]]
    assert reported_once(found, [Audience(TEAM)] * 3, {"cron"}) == [[DEAD], [SILENT], []]


def test_every_set_of_channels_is_told() -> None:
    audiences = [Audience(TEAM), Audience(OTHERS), Audience(TEAM)]
    assert reported_once([[DEAD]] * 3, audiences, {"cron"}) == [
        [DEAD],
        [DEAD],
        [],
    ]


def test_a_run_that_has_told_it_goes_on_with_it_also_behind_others() -> None:
    ears = [Audience(TEAM), Audience(TEAM, ("cron",)), Audience(TEAM)]
    assert reported_once([[DEAD]] * 3, ears, {"cron"}) == [[], [DEAD], []]


def test_nothing_ends_where_it_was_told_because_the_check_is_blind() -> None:
    ears = [Audience(TEAM), Audience(TEAM, ("cron",)), Audience(TEAM, ("cron?",))]
    assert reported_once([[BLIND]] * 3, ears, {"cron"}) == [[], [BLIND], [BLIND]]


def test_what_is_a_runs_own_is_told_by_each() -> None:
    assert reported_once([[SILENT]] * 2, [Audience(TEAM)] * 2, {"cron"}) == [[SILENT]] * 2
