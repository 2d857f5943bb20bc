from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from opsctl.monitoring.alerts.decide import Rules, decide
from opsctl.monitoring.finding import Finding, Severity
from opsctl.run.state.alert_log import CHANNELS, ESCALATION, Message
from opsctl.run.state.alerts import Memory, Silence

START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
CHECKS = ("cron", "disk", "speed")


def warning(check: str, subject: str = "") -> Finding:
    return Finding(check, Severity.WARNING, f"{check} is not well", subject=subject)


def critical(check: str) -> Finding:
    return Finding(check, Severity.CRITICAL, f"{check} is dead", todo=f"opsctl {check}")


def blind(check: str, subject: str = "") -> Finding:
    return Finding(check, Severity.UNKNOWN, "Slurm does not answer", subject=subject)


class Desk:
    """Looks one after the other, with all that was told."""

    def __init__(self, **rules: object) -> None:
        self.rules = Rules(**{"escalate_after": None, **rules})  # type: ignore[arg-type]
        self.memory = Memory()
        self.told: list[Message] = []

    def look(
        self, at: float | datetime, *found: Finding, looked_at: Sequence[str] = CHECKS
    ) -> list[tuple[str, tuple[str, ...]]]:
        """Return what is told `at` hours after the start: kinds with their keys."""
        now = START + at * HOUR if isinstance(at, (int, float)) else at
        self.memory, new = decide(self.memory, found, looked_at, now, self.rules)
        self.told += new
        return [(one.kind, one.keys) for one in new]


def test_a_finding_is_told_once_and_its_end_once() -> None:
    desk = Desk()
    assert desk.look(0, warning("cron")) == [("new", ("cron",))]
    assert desk.look(1, warning("cron")) == []
    assert desk.look(2) == [("recovery", ("cron",))]
    assert desk.look(3) == [] and desk.memory.findings == {}


def test_what_begins_together_is_one_message_with_the_worst_first() -> None:
    desk = Desk()
    assert desk.look(0, warning("disk"), critical("cron"), warning("speed", "node 3")) == [
        ("new", ("disk", "cron", "speed:node 3"))
    ]
    assert re.fullmatch(rf"CRITICAL: {critical('cron').text} .*\b2\b.*", desk.told[0].title)
    assert desk.told[0].severity == "critical" and "opsctl cron" in desk.told[0].body


def test_becoming_worse_is_news_and_becoming_better_is_none() -> None:
    desk = Desk()
    desk.look(0, warning("cron"))
    assert desk.look(1, critical("cron")) == [("new", ("cron",))]
    assert desk.look(2, warning("cron")) == []
    assert desk.look(3, critical("cron")) == []


@pytest.mark.parametrize(
    ("found", "looked_at"),
    [((), ("disk",)), ((blind("cron"),), CHECKS), ((blind("cron", "node"),), CHECKS)],
    ids=["absent", "blind", "blind-subject"],
)
def test_what_could_not_be_looked_at_neither_ends_nor_is_reminded_of(
    found: tuple[Finding, ...], looked_at: tuple[str, ...]
) -> None:
    desk = Desk()
    desk.look(0, warning("cron", "node 3"))
    blind_too = bool(found)
    assert desk.look(0.5, *found, looked_at=looked_at) == []
    if blind_too:
        assert all(keys != ("cron:node 3",) for _, keys in desk.look(9, *found, looked_at=looked_at))
    assert desk.look(10) in ([("recovery", ("cron:node 3",))], [("recovery", ("cron:node 3", f"{_blind_key(found)}?"))])


def _blind_key(found: tuple[Finding, ...]) -> str:
    return found[0].key if found else ""


def test_blind_for_another_subject_ends_this_one() -> None:
    desk = Desk()
    desk.look(0, warning("disk", "/scratch bytes"), warning("disk", "/home bytes"))
    assert desk.look(0.5, blind("disk", "/home")) == [("recovery", ("disk:/scratch bytes",))]


def test_a_check_that_cannot_see_is_told_when_it_stays_so() -> None:
    desk = Desk()
    assert desk.look(0, blind("cron")) == [] and desk.look(0.5, blind("cron")) == []
    assert desk.look(1, blind("cron")) == [("new", ("cron?",))]
    assert desk.look(2) == [("recovery", ("cron?",))]


def test_reminders_come_after_twice_as_long_each_time_up_to_the_most() -> None:
    desk = Desk(remind_after=6 * HOUR, remind_most=timedelta(days=1))
    told = [hour for hour in range(100) if desk.look(hour, warning("cron"))]
    assert told == [0, 6, 18, 42, 66, 90]
    assert [one.kind for one in desk.told[1:]] == ["reminder"] * 5


def test_an_acknowledgement_stops_reminders_and_escalation_until_it_is_worse() -> None:
    desk = Desk(escalate_after=HOUR)
    desk.look(0, warning("cron"))
    known = desk.memory.findings["cron"]
    desk.memory = replace(desk.memory, findings={"cron": replace(known, acknowledged_by="ann", acknowledged_at=START)})
    assert not any(desk.look(hour, warning("cron")) for hour in range(1, 80))
    assert desk.look(80, critical("cron")) == [("new", ("cron",))]
    assert desk.look(82, critical("cron")) == [("escalation", ("cron",))]


def test_what_is_critical_and_acknowledged_by_nobody_is_escalated_once_and_its_end_is_said_there_too() -> None:
    desk = Desk(escalate_after=HOUR)
    assert desk.look(0, critical("cron"), warning("disk")) == [("new", ("cron", "disk"))]
    assert desk.look(0.9, critical("cron"), warning("disk")) == []
    assert desk.look(1, critical("cron"), warning("disk")) == [("escalation", ("cron",))]
    assert desk.told[-1].to == (ESCALATION,)
    assert desk.look(2, critical("cron"), warning("disk")) == []
    assert desk.look(3) == [("recovery", ("cron",)), ("recovery", ("disk",))]
    assert [one.to for one in desk.told[-2:]] == [(CHANNELS, ESCALATION), (CHANNELS,)]


def test_the_hours_limit_holds_back_all_but_what_is_critical_and_says_so_later() -> None:
    desk = Desk(per_hour=2)
    desk.look(0, warning("cron", "1"))
    desk.look(0.1, warning("cron", "1"), warning("cron", "2"))
    now = [warning("cron", str(number)) for number in range(1, 6)]
    assert desk.look(0.2, *now) == []
    assert desk.look(0.3, *now, critical("disk")) == [("new", ("disk",))]
    assert desk.look(1.35, *now, critical("disk")) == [("new", ("cron:3", "cron:4", "cron:5"))]
    assert re.search(r"^.*\b3 .*12:12", desk.told[-1].body, re.MULTILINE), "the number held back, and since when"


def test_quiet_hours_hold_back_what_is_not_critical_until_they_end() -> None:
    desk = Desk(quiet=(time(22), time(7)))
    night = START.replace(hour=23)
    assert desk.look(night, warning("disk")) == []
    assert desk.look(night + HOUR, warning("disk"), critical("cron")) == [("new", ("cron",))]
    assert desk.look(night + 2 * HOUR, warning("disk")) == [("recovery", ("cron",))]
    assert desk.look(night + 7.9 * HOUR, warning("disk")) == []
    assert desk.look(night + 8 * HOUR, warning("disk")) == [("new", ("disk",))]


def test_what_began_and_ended_in_quiet_hours_is_never_told() -> None:
    desk = Desk(quiet=(time(22), time(7)))
    night = START.replace(hour=23)
    desk.look(night, warning("disk"))
    assert desk.look(night + HOUR) == [] and desk.look(night + 9 * HOUR) == []


def test_a_silence_stops_all_and_at_its_end_one_message_says_what_is_open_and_what_has_ended() -> None:
    desk = Desk()
    desk.look(0, critical("cron"), warning("speed"))
    desk.memory = replace(desk.memory, silence=Silence(until=START + 5 * HOUR, by="ann"))
    assert desk.look(1, critical("disk"), critical("cron")) == []
    assert desk.look(4, critical("disk"), critical("cron")) == []
    assert desk.look(5, critical("disk"), critical("cron")) == [("silence", ("cron", "disk", "speed"))]
    assert re.search(r"\bann\b.*\b2 open, 1 ended", desk.told[-1].title)
    assert desk.look(5.1, critical("disk"), critical("cron")) == []
    assert desk.look(6) == [("recovery", ("cron", "disk"))]
    assert desk.memory.silence is None


def test_a_silence_without_anything_open_ends_without_a_word() -> None:
    desk = Desk()
    desk.memory = replace(desk.memory, silence=Silence(until=START + HOUR, by="ann"))
    assert desk.look(2) == [] and desk.memory.silence is None


def test_what_comes_and_goes_while_its_end_is_held_back_is_neither_ended_nor_begun_again() -> None:
    desk = Desk(quiet=(time(22), time(7)))
    desk.look(START.replace(hour=21), warning("disk"))
    night = START.replace(hour=23)
    assert desk.look(night) == []
    assert desk.look(night + HOUR, warning("disk")) == []
    assert desk.look(night + 8 * HOUR) == [("recovery", ("disk",))]


def test_a_clock_that_is_stepped_back_an_hour_doubles_and_loses_nothing() -> None:
    desk = Desk(remind_after=2 * HOUR, escalate_after=3 * HOUR, per_hour=3)
    told = [desk.look(0, critical("cron"))]
    told += [desk.look(at, critical("cron"), warning("disk")) for at in (-1, -0.5, 0, 0.5)]
    assert told == [[("new", ("cron",))], [("new", ("disk",))], [], [], []]
    later = [desk.look(at, critical("cron"), warning("disk")) for at in (1, 2, 3)]
    assert later == [
        [("reminder", ("disk",))],
        [("reminder", ("cron",))],
        [("escalation", ("cron",))],
    ]
    assert desk.look(2.9) == [("recovery", ("cron",)), ("recovery", ("disk",))] and desk.look(4) == []


def test_a_clock_that_was_years_ahead_does_not_stop_reminders() -> None:
    desk = Desk()
    desk.look(20 * 365 * 24, warning("cron"))
    assert desk.look(1, warning("cron")) == [("reminder", ("cron",))]
    assert desk.look(2, warning("cron")) == []


_SEVERITIES = st.sampled_from(["", "", "warning", "critical", "unknown"])
_LOOK = st.tuples(
    st.floats(min_value=0.01, max_value=3.0),  # hours since the last
    st.tuples(*[_SEVERITIES for _ in CHECKS]),
    st.sets(st.sampled_from(CHECKS)),
)
_MAKE = {"warning": warning, "critical": critical, "unknown": blind}


@given(st.lists(_LOOK, max_size=40), st.integers(1, 3), st.booleans())
def test_whatever_happens_news_are_told_once_ends_once_and_no_hour_has_too_much(
    looks: list[tuple[float, tuple[str, ...], set[str]]], per_hour: int, has_quiet: bool
) -> None:
    desk = Desk(per_hour=per_hour, escalate_after=HOUR, quiet=(time(22), time(7)) if has_quiet else None)
    at = START
    for wait, severities, looked_at in looks:
        at += wait * HOUR
        found = [
            _MAKE[severity](check)
            for check, severity in zip(CHECKS, severities, strict=True)
            if severity and check in looked_at
        ]
        desk.look(at, *found, looked_at=sorted(looked_at))
    for _ in range(200):
        at += HOUR
        desk.look(at)
    rank = {"": 0, "warning": 1, "unknown": 1, "critical": 2}
    open_at: dict[str, int] = {}
    for one in desk.told:
        for key in one.keys:
            if one.kind == "new":
                # Once, and again only when it is worse.
                worst = 2 if f"CRITICAL {key}," in one.body else 1
                assert open_at.get(key, 0) < worst
                open_at[key] = max(open_at.get(key, 0), 1) if worst == 1 else worst
            elif one.kind == "recovery":
                assert open_at.pop(key) > 0
            else:
                assert key in open_at
    assert not open_at and not desk.memory.findings
    assert len({one.id for one in desk.told}) == len(desk.told)
    for first in desk.told:
        hour = [one for one in desk.told if timedelta(0) <= one.at - first.at < HOUR]
        plain = [one for one in hour if rank.get(one.severity, 0) < 2]
        assert len(plain) <= per_hour
        if has_quiet:
            assert not any(
                (one.at.hour >= 22 or one.at.hour < 7) and one.severity not in ("critical", "ok") for one in hour
            )


def test_a_look_that_is_older_than_somebodys_who_has_seen_it_ends_nothing() -> None:
    """Two people's looks cross: the older one, taken before it began, is told last."""
    desk = Desk()
    desk.look(0, critical("cron"))
    assert desk.look(-1 / 60) == [] and desk.memory.findings["cron"].recovered_at is None
    assert desk.look(1 / 60) == [("recovery", ("cron",))]


def test_under_a_clock_that_was_stepped_back_an_hour_what_ends_is_told() -> None:
    desk = Desk()
    desk.look(0, critical("cron"))
    assert desk.look(-1) == [("recovery", ("cron",))]
