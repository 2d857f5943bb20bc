from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.core.files import reserve, state_files
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import alert_log, alerts
from opsctl.run.state.alert_log import CHANNELS, ESCALATION, Event, Message
from opsctl.run.state.alerts import Memory, Noted, Remembered

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
CRON = Noted("cron", "critical", "no tick for 2 h", "opsctl cron start")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def minutes(number: float) -> datetime:
    return NOW + timedelta(minutes=number)


def message(name: str, *keys: str, kind: str = "new", to: tuple[str, ...] = (CHANNELS,)) -> Message:
    return Message(id=name, kind=kind, at=NOW, title=name, body=name, keys=keys, to=to)


def of(event: str, name: str = "", channel: str = "a", at: datetime = NOW, **more: object) -> Event:
    return Event(event=event, at=at, id=name, channel=channel, **more)  # type: ignore[arg-type]


def making(*names: str) -> list[Event]:
    return [Event(event="message", at=NOW, id=name, message=message(name)) for name in names]


def ids(lines: list[Event], channel: str = "a") -> list[str]:
    return [one.id for one in alert_log.queue_of(lines, channel).owed]


def test_what_is_noted_at_every_look_is_one_message_until_it_is_worse_or_has_ended(paths: RunPaths) -> None:
    for minute in range(3):
        alerts.note(paths, [Noted("disk", "warning", "90 % full")], minutes(minute))
    alerts.note(paths, [Noted("disk", "critical", "99 % full")], minutes(3))
    assert alerts.note_recovered(paths, ["disk"], minutes(4)) == 1
    assert alerts.note_recovered(paths, ["disk"], minutes(5)) == 0
    told = alert_log.messages(alert_log.events(paths))
    assert [(one.kind, one.severity) for one in told] == [
        ("handed-over", "warning"),
        ("handed-over", "critical"),
        ("recovery", "ok"),
    ]
    assert alerts.open_alerts(paths) == {}


def test_of_several_processes_that_note_the_same_finding_one_makes_the_message(paths: RunPaths) -> None:
    code = (
        "import sys; from pathlib import Path; from opsctl.core.timestamps import now\n"
        "from opsctl.run.state.alerts import Noted, note; from opsctl.run.config.paths import RunPaths\n"
        "note(RunPaths(Path(sys.argv[1])), [Noted('cron', 'critical', 'dead')], now())"
    )
    calls = [subprocess.Popen([sys.executable, "-c", code, str(paths.output)]) for _ in range(3)]
    assert [call.wait(timeout=60) for call in calls] == [0] * 3
    assert len(alert_log.messages(alert_log.events(paths))) == 1


def test_an_acknowledgement_names_the_person_and_a_key_that_is_not_open_is_refused(paths: RunPaths) -> None:
    alerts.note(paths, [CRON], NOW)
    assert alerts.acknowledge(paths, ["cron"], "on it", minutes(1)) == ["cron"]
    found = alerts.open_alerts(paths)["cron"]
    assert found.acknowledged_by and found.acknowledged_at == minutes(1) and found.acknowledged_why == "on it"
    with pytest.raises(OpsctlError, match=r"crom.*\bcron\b"):
        alerts.acknowledge(paths, ["crom"], "", minutes(2))


def test_a_silence_is_on_record_and_ends_by_itself_or_by_somebody(paths: RunPaths) -> None:
    alerts.silence(paths, minutes(30), "maintenance", NOW)
    found = alerts.silence_of(paths, minutes(1))
    assert found is not None and found.why == "maintenance"
    assert alerts.silence_of(paths, minutes(31)) is None
    alerts.silence(paths, None, "", minutes(2))
    assert alerts.silence_of(paths, minutes(3)) is None
    assert [one.event for one in alert_log.events(paths)] == ["silenced", "unsilenced"]


@pytest.mark.parametrize("damage", [b"", b'{"findings": {"cr', b"[]", b"\xff\xfe", None], ids=repr)
def test_without_a_readable_memory_every_finding_is_new(paths: RunPaths, damage: bytes | None) -> None:
    alerts.note(paths, [Noted("disk", "warning", "full")], NOW)
    if damage is None:
        paths.alerts.unlink()
    else:
        paths.alerts.write_bytes(damage)
    assert alerts.open_alerts(paths) == {}
    with alerts.opened(paths, "check") as memory:
        assert ("is damaged" in memory.problem) is bool(damage)
    assert alerts.note(paths, [Noted("disk", "warning", "full")], minutes(3)) == 1


def test_a_disk_that_is_full_with_its_reserve_changes_nothing_and_the_next_look_makes_the_message_once(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts.note(paths, [Noted("disk", "warning", "full")], NOW)
    before = paths.alerts.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(paths.alerts))

    with monkeypatch.context() as patched:
        for module in (state_files, reserve):
            patched.setattr(module, "write_all", full)
        with pytest.raises(OSError, match="No space left"):
            alerts.note(paths, [CRON], minutes(1))
    assert paths.alerts.read_bytes() == before
    assert alerts.note(paths, [CRON], minutes(2)) == 1
    assert [one.keys for one in alert_log.messages(alert_log.events(paths))] == [("disk",), ("cron",)]


def test_a_log_that_cannot_be_written_gets_the_message_from_whoever_comes_next(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts.note(paths, [Noted("disk", "warning", "full")], NOW)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(paths.alert_log))

    with monkeypatch.context() as patched:
        patched.setattr(alert_log, "append_event", full)
        alerts.note(paths, [CRON], minutes(1))
    assert len(alert_log.messages(alert_log.events(paths))) == 1
    assert alerts.note(paths, [CRON], minutes(2)) == 0
    assert [one.keys for one in alert_log.messages(alert_log.events(paths))] == [("disk",), ("cron",)]


def test_half_a_line_costs_only_itself(paths: RunPaths) -> None:
    alerts.note(paths, [CRON], NOW)
    with paths.alert_log.open("ab") as log:
        log.write(b'{"event": "sent", "at": "2026-')
    alerts.note(paths, [Noted("disk", "warning", "full")], minutes(1))
    assert [one.keys for one in alert_log.messages(alert_log.events(paths))] == [("cron",), ("disk",)]


def test_a_channel_gets_what_nobody_was_told_before_it_came_and_all_after() -> None:
    lines = [*making("m1", "m2"), of("sent", "m1", "b")]
    joined = alert_log.joins(lines, "a", (CHANNELS,), NOW)
    assert joined is not None and joined.id == "m1"
    lines += [joined, *making("m3")]
    assert ids(lines) == ["m2", "m3"]
    assert alert_log.joins(lines, "a", (CHANNELS,), NOW) is None
    assert ids([*lines, of("sent", "m2"), of("dropped", "m3")]) == []
    assert ids(lines, "nobody") == []


def test_a_message_that_one_channel_has_taken_is_still_owed_to_the_other() -> None:
    lines = [*(of("joined", channel=name, to=(CHANNELS,)) for name in "ab"), *making("m1"), of("sent", "m1", "a")]
    assert (ids(lines, "a"), ids(lines, "b")) == ([], ["m1"])


def test_a_channel_gets_only_what_is_for_its_kind() -> None:
    lines = [of("joined", channel="a", to=(ESCALATION,)), *making("m1")]
    late = message("m2", to=(ESCALATION,))
    lines.append(Event(event="message", at=NOW, id="m2", message=late))
    assert ids(lines) == ["m2"]
    again = alert_log.joins(lines, "a", (CHANNELS, ESCALATION), NOW)
    assert again is not None and ids([*lines, again]) == ["m1", "m2"]


def test_where_the_line_is_lost_after_which_a_channel_joined_nothing_old_is_sent_again() -> None:
    lines = [*making("m2"), of("joined", "lost", to=(CHANNELS,)), *making("m3")]
    assert ids(lines) == ["m3"]


@pytest.mark.parametrize(
    ("results", "wait_s"),
    [
        (["failed"], 60),
        (["failed"] * 3, 240),
        (["failed"] * 30, 3600),
        (["unknown"] * 30, 86_400),
        (["failed", "sent", "failed"], 60),
        (["failed", "ready"], 0),
    ],
)
def test_the_wait_after_failures_doubles_and_a_success_ends_it(results: list[str], wait_s: float) -> None:
    lines = [of("joined", to=(CHANNELS,)), *making("m1"), *(of(result, "m0") for result in results)]
    queue = alert_log.queue_of(lines, "a")
    assert queue.wait_s == wait_s
    assert queue.is_due(NOW + timedelta(seconds=wait_s)) and queue.is_due(NOW - timedelta(hours=1))
    assert queue.is_due(NOW + timedelta(seconds=wait_s - 1)) is (wait_s == 0)


def test_a_server_that_asks_for_longer_gets_it() -> None:
    lines = [of("joined", to=(CHANNELS,)), of("failed", "m1", retry_after_s=7200.0)]
    assert alert_log.queue_of(lines, "a").wait_s == 7200


def test_a_try_without_an_end_is_known() -> None:
    lines = [of("joined", to=(CHANNELS,)), *making("m1", "m2"), of("sending", "m1"), of("sent", "m1")]
    assert alert_log.queue_of(lines, "a").unfinished == ()
    assert alert_log.queue_of([*lines, of("sending", "m2")], "a").unfinished == ("m2",)


def test_a_failing_channel_is_seen_with_since_when_and_what_waits_until_nobody_tries_it_any_more(
    paths: RunPaths,
) -> None:
    for line in [of("joined", to=(CHANNELS,)), *making("m1", "m2"), of("failed", "m1", why="refused")]:
        state_files.make_folder(paths.output, paths.state)
        alert_log.append_event(paths, line)
    (seen,) = alert_log.channels_seen(alert_log.events(paths), minutes(5))
    assert (seen.name, seen.failing_since, seen.detail, seen.waiting) == ("a", NOW, "refused", 2)
    (seen,) = alert_log.channels_seen(alert_log.events(paths), NOW + timedelta(days=4))
    assert seen.failing_since is None


def test_what_does_not_fit_in_the_memory_costs_only_itself(paths: RunPaths) -> None:
    memory = Memory(findings={"cron": Remembered(severity="critical", since=NOW, last_seen=NOW)})
    with alerts.opened(paths, "write") as opened:
        opened.write(memory)
    found = json.loads(paths.alerts.read_text())
    found["findings"]["disk"] = "nonsense"
    found["hour"] = 7
    paths.alerts.write_text(json.dumps(found))
    assert list(alerts.open_alerts(paths)) == ["cron"]
