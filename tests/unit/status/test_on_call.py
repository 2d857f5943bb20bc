"""The hand-over of a run: what happened, what is open, what is queued."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from opsctl.checkpoints.prunes import Pruned
from opsctl.output import json_text
from opsctl.records.alert_log import Event, Message
from opsctl.records.alerts import Remembered
from opsctl.records.cancels import Cancel
from opsctl.records.chains import REFILL, SUBMIT, Chain
from opsctl.records.deactivations import Deactivation
from opsctl.records.kill_switch import KillSwitchState
from opsctl.records.requests import PrintedRequest
from opsctl.status.on_call import Facts, hand_over, happenings
from opsctl.status.on_call_text import WIDTH, hand_over_lines
from opsctl.status.open_findings import with_memory
from opsctl.status.overview import findings
from opsctl.watch.seen import Channel
from tests.printed_json import printed
from tests.unit.status.runs import now, run
from tests.unit.status.test_screen import HEALTHY
from tests.unit.watch.jobs import HELD, NOW, RUNNING

HOUR = timedelta(hours=1)
SINCE = NOW - 12 * HOUR


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


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
    channels=(Channel("slack", NOW - 5 * HOUR, "HTTP 429", 3),),
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


def test_what_happened_is_told_in_the_order_of_time_and_nothing_from_before() -> None:
    assert told() == [
        "01:00 attempt 1 (10_1) of somebody began from iteration 0",
        "01:00 ann cancelled what was queued (4_[2-3%1])",
        "02:00 the queue was refilled with chain 5 (1-3%1) behind 4, ann's",
        "03:06 ben's request to save (before maintenance): done: saved iteration 450",
        "04:00 alert: tr1 is held (told mail)",
        "05:30 ann acknowledged training: asked the admins",
        "06:00 attempt 1 (10_1) ended: signal at iteration 400, no new checkpoint; rank 37 on iam12 ended by SIGKILL",
        "06:54 5 checkpoints saved, 400 to 440",
        "08:00 alert: disk (told nobody yet)",
        "09:00 eve asked to stop",
        "09:30 eve triggered the kill switch: a spike",
        "09:58 attempt 2 (12_1) of somebody began from iteration 400",
    ]
    assert told(since=NOW) == []


def test_the_text_is_what_happened_then_what_is_open_then_what_is_queued() -> None:
    lines = hand_over_lines(FACTS, hand_over(FACTS, SINCE, NOW), SINCE, NOW)
    assert lines[0] == "tr1: hand-over at 2026-03-01T10:00+00:00, of 12 h since 2026-02-28T22:00+00:00"
    assert max(map(len, lines)) <= WIDTH
    places = [lines.index(head) for head in ("happened", "open", "queued")]
    assert places == sorted(places)
    text = " ".join(" ".join(lines).split())
    assert "now RUNNING for 2:10:05, 17:49:55 left of its time; iteration 500 of 1000" in text
    assert "[for 3 h; acknowledged by ann" in text and "eve waits for an answer: stop" in text
    assert "3 alerts not sent yet: opsctl alerts list" in text
    assert "12_1 of ana runs for 2:10:05 on node[1-4]" in text and "30_[1-3%1] of ana held by its owner" in text


def test_a_switch_that_was_triggered_and_deactivated_meanwhile_is_told_with_both() -> None:
    at = NOW - 3 * HOUR
    off = Deactivation(at=at, by="ann", triggered_by="ben", triggered_at=at - HOUR, triggered_why="a spike")
    by_hand = Deactivation(at=NOW - 2 * HOUR, by="ann")
    lines = told(Facts("tr1", Path("/o"), run(jobs=()), deactivations=(off, by_hand)))
    assert lines == [
        "06:00 ben triggered the kill switch: a spike",
        "07:00 ann deactivated the kill switch of ben",
        "08:00 ann deactivated the kill switch of somebody",
    ]


def test_what_somebody_pruned_at_once_is_one_line() -> None:
    at = NOW - 2 * HOUR
    prunes = (
        Pruned(18, 9, "ben@login1", at - 6 * HOUR),
        *(Pruned(number, 9, "ann@login1", at + timedelta(seconds=number / 100)) for number in (100, 300, 200)),
        Pruned(19, 9, "ann@login1", None),
    )
    told = [one.text for one in happenings(Facts("tr1", None, None, prunes=prunes), SINCE)]
    assert told == ["ben@login1 pruned checkpoint 18", "ann@login1 pruned 3 checkpoints, 100 to 300"]


def test_without_slurm_the_rest_is_told_and_the_queue_is_not_known() -> None:
    blind = replace(FACTS, overview=now(BUSY, jobs=(), blind="Slurm does not answer"))
    lines = hand_over_lines(blind, hand_over(blind, SINCE, NOW), SINCE, NOW)
    assert lines[-1] == "  not known: Slurm does not answer" and any("attempt 1" in line for line in lines)
    over = hand_over(blind, SINCE, NOW)
    assert (over.queue, over.slurm_problem, over.state) == (None, "Slurm does not answer", "unknown")


def test_a_quiet_run_says_nothing_three_times() -> None:
    quiet = Facts("tr1", Path("/o"), run(jobs=()), ())
    lines = hand_over_lines(quiet, hand_over(quiet, SINCE, NOW), SINCE, NOW)
    assert lines[2:] == ["happened", "  nothing", "open", "  nothing", "queued", "  nothing"]


def test_a_run_that_cannot_be_read_and_records_that_cannot_say_why() -> None:
    broken = Facts("tr1", None, None, problem="run.toml: cannot read the run file")
    lines = hand_over_lines(broken, hand_over(broken, SINCE, NOW), SINCE, NOW)
    assert lines[1] == "  cannot be read: run.toml: cannot read the run file"
    partly = replace(FACTS, unread=("alerts: permission denied",))
    assert "  not read: alerts: permission denied" in hand_over_lines(partly, hand_over(partly, SINCE, NOW), SINCE, NOW)


def test_nothing_of_others_steers_the_terminal_and_a_time_without_a_zone_breaks_nothing() -> None:
    naive = Event(event="acknowledged", at=datetime(2026, 3, 1, 9), keys=("\x1b[2Jx",), by="eve\n")  # noqa: DTZ001
    evil = replace(FACTS, alerts=(naive,))
    text = "\n".join(hand_over_lines(evil, hand_over(evil, SINCE, NOW), SINCE, NOW))
    assert "\x1b" not in text and "03-01 09:00  eve  acknowledged \\x1b[2Jx" in text


def test_programs_get_the_same() -> None:
    (over,) = printed("on-call", json_text("hand_overs", [hand_over(FACTS, SINCE, NOW)]))
    assert len(over["happened"]) == 12 and over["requests"][0]["id"] == "2" and over["unsent_alerts"] == 3
    assert {one["acknowledged_by"] for one in over["findings"]} == {"ann", None} and len(over["queue"]) == 2
