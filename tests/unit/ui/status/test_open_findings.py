"""Findings with what is remembered of them."""

from __future__ import annotations

from datetime import timedelta

from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.overview import printed_open, with_memory
from opsctl.run.state.alerts import Remembered
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW

HELD = Finding("training", Severity.CRITICAL, "tr1 is held", subject="held 30", todo="scontrol release 30")
FULL = Remembered(
    severity="critical",
    since=NOW - timedelta(days=2, hours=4),
    last_seen=NOW - timedelta(minutes=40),
    text="/scratch is 97 % full",
    todo="remove something",
    evidence=("quota: 97 of 100 TiB",),
)


def remembered(hours: float, **more: object) -> Remembered:
    fields = {"severity": "critical", "since": NOW - timedelta(hours=hours), "last_seen": NOW, **more}
    return Remembered(**fields)  # type: ignore[arg-type]


def test_a_finding_has_its_remembered_age_and_acknowledgement() -> None:
    at = NOW - timedelta(hours=1)
    memory = {HELD.key: remembered(3, acknowledged_by="ann", acknowledged_at=at, acknowledged_why="asked the admins")}
    (one,) = with_memory([HELD], memory, {"training"})
    assert missing(one.story(NOW), "3 h", "ann", "1 h ago", "asked the admins", "scontrol release 30") == []
    printed = printed_open(one)
    assert (printed.since, printed.acknowledged_by, printed.seen_at) == (NOW - timedelta(hours=3), "ann", None)


def test_what_the_check_itself_knows_of_its_age_counts() -> None:
    own = Finding("training", Severity.WARNING, "x", since=NOW - timedelta(days=1))
    (one,) = with_memory([own], {own.key: remembered(3)}, {"training"})
    assert one.since == own.since


def test_earlier_findings_of_a_costly_check_are_shown_with_their_time_the_worst_first() -> None:
    warning = Finding("kill_switch", Severity.WARNING, "triggered")
    memory = {"filesystem:/scratch bytes": FULL}
    first, second = with_memory([warning], memory, {"training", "kill_switch"})
    assert (first.finding.check, first.finding.subject, second.finding) == ("filesystem", "/scratch bytes", warning)
    assert missing(first.story(NOW), "2 d 4 h", "40 min", "remove something") == []
    assert first.finding.evidence == ("quota: 97 of 100 TiB",)
    assert second.story(NOW) == ""


def test_what_this_look_no_longer_finds_is_over_whatever_is_remembered() -> None:
    assert with_memory([], {HELD.key: remembered(3)}, {"training"}) == []


def test_what_another_release_has_found_is_shown_and_what_nobody_could_see_is_no_finding() -> None:
    memory = {"moon:phase": FULL, "filesystem": remembered(1, severity="unknown")}
    assert [one.finding.key for one in with_memory([], memory, {"training"})] == ["moon:phase"]
