"""The handover of a run: past events, open findings and the queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from opsctl.core.output import json_text
from opsctl.monitoring.on_call import Facts, handover, happenings
from opsctl.monitoring.overview import findings, with_memory
from opsctl.run.checkpoints.rollbacks import Pruned
from opsctl.run.state.alert_log import ChannelSeen, Event, Message
from opsctl.run.state.alerts import Remembered
from opsctl.run.state.chains import REFILL, SUBMIT, Cancel, Chain
from opsctl.run.state.kill_switch import Deactivation, KillSwitchState
from opsctl.run.state.requests import PrintedRequest
from opsctl.ui.status.on_call import WIDTH, handover_lines
from tests.facts import missing
from tests.printed_json import printed
from tests.unit.monitoring.jobs import HELD, NOW, RUNNING
from tests.unit.ui.status.runs import now, run
from tests.unit.ui.status.test_screen import HEALTHY

HOUR = timedelta(hours=1)
SINCE = NOW - 12 * HOUR


def chain(number: int, hours_ago: float, how: str) -> Chain:
    at = NOW - hours_ago * HOUR
    return Chain(chain=number, submitted_at=at, user="ann", array="1-3%1", how=how, after=("4",))


def message(name: str, kind: str, hours_ago: float, title: str) -> Event:
    at = NOW - hours_ago * HOUR
    return Event(event="message", at=at, id=name, message=Message(id=name, kind=kind, at=at, title=title, body=""))


BUSY = now(
    HEALTHY,
    jobs=(RUNNING, HELD),
    chains=(chain(4, 20, SUBMIT), chain(5, 8, REFILL)),
    channels=(ChannelSeen("slack", NOW - 5 * HOUR, "HTTP 429", 3),),
    kill_switch=KillSwitchState(Path("/o/kill-switch"), True, True, by="eve", at=NOW - 0.5 * HOUR, why="a spike"),
)
HELD_KEY = next(one.key for one in findings(BUSY) if one.check == "training")
MEMORY = {HELD_KEY: Remembered(severity="warning", since=NOW - 3 * HOUR, last_seen=NOW, acknowledged_by="ann")}
ASKED = PrintedRequest(id="1", action="save", asked_by="ben", asked_at=NOW - 7 * HOUR, why="before maintenance",
                       at=NOW - 6.9 * HOUR, outcome="done", words="saved iteration 450", state="answered")  # fmt: skip
FACTS = Facts(
    "tr1",
    Path("/o"),
    BUSY,
    tuple(with_memory(findings(BUSY), MEMORY, {"training"})),
    cancels=(Cancel(at=NOW - 9 * HOUR, by="ann", jobs=("4_[2-3%1]",), queued_only=True),),
    alerts=(
        message("a", "new", 6, "tr1 is held"),
        Event(event="sent", at=NOW - 6 * HOUR, id="a", channel="mail"),
        message("b", "reminder", 5, "tr1 is still held"),
        Event(event="acknowledged", at=NOW - 4.5 * HOUR, keys=("training",), by="ann", why="asked the admins"),
        message("c", "new", 2, "disk"),
    ),
    requests=(
        ASKED,
        PrintedRequest(id="2", action="stop", asked_by="eve", asked_at=NOW - 1 * HOUR, state="waiting"),
    ),
    checkpoints=tuple((400 + 10 * n, NOW - (3.5 - n / 10) * HOUR) for n in range(5)),
)


def told(facts: Facts = FACTS, since: datetime = SINCE) -> list[str]:
    return [f"{one.at.astimezone():%H:%M} {one.text}" for one in happenings(facts, since)]


def test_past_events_are_in_the_order_of_time_and_none_is_older_than_asked() -> None:
    events = told()
    expected = [
        ("01:00", "attempt 1", "10_1", "iteration 0"),
        ("01:00", "ann", "cancelled", "4_[2-3%1]"),
        ("02:00", "refilled", "chain 5", "1-3%1", "4", "ann"),
        ("03:06", "ben", "save", "before maintenance", "saved iteration 450"),
        ("04:00", "tr1 is held", "mail"),
        ("05:30", "ann", "training", "asked the admins"),
        ("06:00", "attempt 1", "10_1", "signal", "iteration 400", "rank 37", "iam12", "SIGKILL"),
        ("06:54", "5", "400", "440"),
        ("07:50", "attempt 2", "12_1", "iteration 400"),
        ("08:00", "disk"),
        ("09:00", "eve", "stop"),
        ("09:30", "eve", "kill switch", "a spike"),
    ]
    assert [missing(event, *facts) for event, facts in zip(events, expected, strict=True)] == [[]] * len(expected)
    assert told(since=NOW) == []


def test_the_text_has_past_events_then_open_findings_then_the_queue(golden: Callable[[str, str], None]) -> None:
    lines = handover_lines(FACTS, handover(FACTS, SINCE, NOW), SINCE, NOW)
    assert max(map(len, lines)) <= WIDTH
    golden("status/handover.txt", "\n".join(lines) + "\n")


def test_a_kill_switch_that_was_triggered_and_deactivated_is_two_events() -> None:
    at = NOW - 3 * HOUR
    off = Deactivation(at=at, by="ann", triggered_by="ben", triggered_at=at - HOUR, triggered_why="a spike")
    by_hand = Deactivation(at=NOW - 2 * HOUR, by="ann")
    triggered, deactivated, later = told(Facts("tr1", Path("/o"), run(jobs=()), deactivations=(off, by_hand)))
    assert missing(triggered, "06:00", "ben", "triggered", "a spike") == []
    assert missing(deactivated, "07:00", "ann", "deactivated", "ben") == []
    assert missing(later, "08:00", "ann", "deactivated") == []


def test_checkpoints_that_a_user_pruned_together_are_one_line() -> None:
    at = NOW - 2 * HOUR
    prunes = (
        Pruned(18, 9, "ben@login1", at - 6 * HOUR),
        *(Pruned(number, 9, "ann@login1", at + timedelta(seconds=number / 100)) for number in (100, 300, 200)),
        Pruned(19, 9, "ann@login1", None),
    )
    one, three = (event.text for event in happenings(Facts("tr1", None, None, prunes=prunes), SINCE))
    assert missing(one, "ben@login1", "pruned", "18") == missing(three, "ann@login1", "3", "100", "300") == []


def test_without_slurm_the_queue_is_unknown_and_the_rest_is_shown() -> None:
    blind = replace(FACTS, overview=now(BUSY, jobs=(), blind="squeue: no answer"))
    lines = handover_lines(blind, handover(blind, SINCE, NOW), SINCE, NOW)
    assert "squeue: no answer" in lines[-1] and any("attempt 1" in line for line in lines)
    over = handover(blind, SINCE, NOW)
    assert (over.queue, over.slurm_problem, over.state) == (None, "squeue: no answer", "unknown")


def test_a_quiet_run_shows_three_empty_lists() -> None:
    quiet = Facts("tr1", Path("/o"), run(jobs=()), ())
    lines = handover_lines(quiet, handover(quiet, SINCE, NOW), SINCE, NOW)
    assert len(lines[2:]) == 6 and len(set(lines[3::2])) == 1


def test_a_run_or_a_record_that_cannot_be_read_is_shown_with_the_reason() -> None:
    broken = Facts("tr1", None, None, problem="run.toml: no file")
    assert "run.toml: no file" in handover_lines(broken, handover(broken, SINCE, NOW), SINCE, NOW)[1]
    partly = replace(FACTS, unread=("alerts: permission denied",))
    text = "\n".join(handover_lines(partly, handover(partly, SINCE, NOW), SINCE, NOW))
    assert "alerts: permission denied" in text


def test_control_characters_are_escaped_and_a_time_without_a_zone_is_shown() -> None:
    naive = Event(event="acknowledged", at=datetime(2026, 3, 1, 9), keys=("\x1b[2Jx",), by="eve\n")  # noqa: DTZ001
    evil = replace(FACTS, alerts=(naive,))
    text = "\n".join(handover_lines(evil, handover(evil, SINCE, NOW), SINCE, NOW))
    assert "\x1b" not in text and missing(text, "03-01 09:00", "eve", "\\x1b[2Jx") == []


def test_programs_get_the_same() -> None:
    (over,) = printed("on-call", json_text("hand_overs", [handover(FACTS, SINCE, NOW)]))
    assert len(over["happened"]) == 12 and over["requests"][0]["id"] == "2" and over["unsent_alerts"] == 3
    assert {one["acknowledged_by"] for one in over["findings"]} == {"ann", None} and len(over["queue"]) == 2
