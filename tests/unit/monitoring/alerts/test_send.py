"""Messages to real servers, each sent once, in order, whatever the servers do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from opsctl.core.timestamps import now
from opsctl.run.state import alert_log, alerts
from opsctl.run.state.alerts import Noted
from tests.unit.monitoring.alerts.desk_of import Desk, critical, warning
from tests.unit.monitoring.alerts.servers import HANGS_S, Answer, Mails, Posts, http_server, smtp_server

pytestmark = pytest.mark.usefixtures("forked_senders")


def test_a_mail_is_sent_once_with_the_messages_id_and_its_end_once(tmp_path: Path) -> None:
    with smtp_server(Mails()) as mails:
        desk = Desk.at(tmp_path, channels=[mails.url])
        told = [desk.look(0, critical("cron")), desk.look(60, critical("cron")), desk.look(120), desk.look(180)]
    assert [(one.made, one.sent, one.lines) for one in told] == [(1, 1, ()), (0, 0, ()), (1, 1, ()), (0, 0, ())]
    first, second = alert_log.messages(desk.log)
    assert [subject for subject, _, _ in mails.taken] == [
        f"[tiny] {kind}: {critical('cron').text} ({one.id})"
        for kind, one in (("CRITICAL", first), ("recovered", second))
    ]
    assert all(one.id in message_id for one, (_, message_id, _) in zip((first, second), mails.taken, strict=True))


def test_what_somebody_wrote_into_the_log_ends_no_header_and_stops_no_other_message(tmp_path: Path) -> None:
    with smtp_server(Mails()) as mails:
        desk = Desk.at(tmp_path, channels=[mails.url])
        desk.look(0, critical("cron"))
        at = desk.log[0].at
        planted = alert_log.Message(
            id="a>\nBcc: eve@example.org\n", kind="new", at=at, title="x\nBcc: eve@example.org\n\n\x1b[2J", body="b"
        )
        alert_log.append_event(desk.paths, alert_log.Event(event="message", at=at, id=planted.id, message=planted))
        told = desk.look(5, critical("cron"), critical("disk"))
    assert told.lines == () and told.sent == 2
    assert [recipient for _, _, recipient in mails.taken] == ["ann@example.org"] * 3
    assert "\x1b" not in mails.taken[1][0] and "\n" not in mails.taken[1][0] and "\n" not in mails.taken[1][1]


def test_a_severity_that_nobody_knows_in_the_records_ends_no_look(tmp_path: Path) -> None:
    with http_server(Posts()) as posts:
        desk = Desk.at(tmp_path, channels=[posts.url()])
        desk.look(0, critical("disk"))
        known = desk.paths.alerts.read_text()
        desk.paths.alerts.write_text(
            known.replace('"severity": "critical"', '"severity": "grave"').replace('"disk"', '"elsewhere"')
        )
        assert '"grave"' in desk.paths.alerts.read_text()
        desk.look(5, critical("disk"), critical("cron"))
    assert any("cron is dead" in title or "and 1 more" in title for title in posts.titles[1:])


def test_a_mail_server_that_is_down_gets_all_later_in_order_and_nothing_twice(tmp_path: Path) -> None:
    mails = Mails()
    with smtp_server(mails):
        pass
    desk = Desk.at(tmp_path, channels=[mails.url])
    found = []
    for hour in range(3):
        found.append(warning("disk", str(hour)))
        told = desk.look(60 * hour, *found)
        assert told.sent == 0 and "Connection refused" in told.lines[0]
    (seen,) = alert_log.channels_seen(alert_log.events(desk.paths), desk.began)
    assert seen.waiting == 3 and seen.failing_since is not None
    with smtp_server(mails):
        desk.settle(channels=[mails.url])
        # The server came back on another port: for the desk that is another channel, which no one has told anything.
        assert desk.look(180, *found).sent == 3
        assert desk.look(240, *found).sent == 0
    assert [subject.rpartition(" (")[0] for subject, _, _ in mails.taken] == [
        f"[tiny] WARNING: disk {hour} is not well" for hour in range(3)
    ]


def test_a_server_that_asks_to_come_again_is_left_alone_for_a_minute_and_then_gets_it(tmp_path: Path) -> None:
    with smtp_server(Mails(answers=["451 greylisted"])) as mails:
        desk = Desk.at(tmp_path, channels=[mails.url])
        told = desk.look(0, critical("cron"))
        assert told.sent == 0 and all(word in told.lines[0] for word in ("failed", "451", "greylisted"))
        assert desk.look(0.5, critical("cron")).sent == 0 and mails.tries == 1
        assert desk.look(2, critical("cron")).sent == 1
    assert len(mails.taken) == 1 and desk.results() == [("failed", "cron"), ("sent", "cron")]


def test_a_mail_that_failed_three_times_is_tried_again_once_the_next_is_delivered(tmp_path: Path) -> None:
    with smtp_server(Mails(answers=["550 busy"] * 3)) as mails:
        desk = Desk.at(tmp_path, channels=[mails.url])
        desk.look(0, critical("cron"))
        told = [desk.look(60 * hour, critical("cron"), warning("disk")).sent for hour in (1, 2)]
        assert told == [0, 2]
    assert [subject.split(":")[0] for subject, _, _ in mails.taken] == ["[tiny] WARNING", "[tiny] CRITICAL"]
    assert desk.results()[-2:] == [("sent", "disk"), ("sent", "cron")]
    assert alert_log.channels_seen(desk.log, desk.began)[0].dropped == 0


def test_a_dropped_mail_keeps_the_channel_unhealthy_until_it_is_acknowledged(tmp_path: Path) -> None:
    with (
        smtp_server(Mails(answers=["550 no-spam"] * 3 + ["250 OK", "550 no-spam"])) as mails,
        http_server(Posts()) as posts,
    ):
        desk = Desk.at(tmp_path, channels=[mails.url], heartbeat=f"http://127.0.0.1:{posts.port}/beat")
        first = desk.look(0, warning("cron"))
        assert "550" in first.lines[0] and "no-spam" in first.lines[0]
        told = [desk.look(60 * hour, warning("cron"), warning("disk"), is_whole=True).sent for hour in (1, 2)]
        assert told == [0, 1] and posts.tries == 0
        assert [subject.split(":")[0] for subject, _, _ in mails.taken] == ["[tiny] WARNING"]
        assert desk.results()[-2:] == [("failed", "cron"), ("dropped", "cron")]
        (mail,) = alert_log.channels_seen(desk.log, desk.began)
        assert mail.dropped == 1 and "no-spam" in mail.detail
        lost = Noted(f"channels:{mail.name}", "warning", "an alert was dropped")
        alerts.note(desk.paths, [lost], desk.began)
        alerts.acknowledge(desk.paths, [lost.key], "", now())
        assert alert_log.channels_seen(desk.log, desk.began)[0].dropped == 0


def test_a_channel_that_refuses_everything_keeps_everything(tmp_path: Path) -> None:
    posts = Posts(otherwise=lambda: Answer(403))
    with http_server(posts):
        desk = Desk.at(tmp_path, channels=[posts.url()])
        desk.look(0, critical("cron"))
        for hour in range(1, 4):
            desk.look(60 * hour, critical("cron"), warning("disk"))
        assert alert_log.channels_seen(alert_log.events(desk.paths), desk.began)[0].waiting == 2 and not posts.taken
        posts.otherwise = Answer
        assert desk.look(600, critical("cron"), warning("disk")).sent == 3
    assert [title.split(":")[0] for title in posts.titles] == ["[tiny] CRITICAL", "[tiny] WARNING", "[tiny] reminder 1"]


@pytest.mark.parametrize(("patience_s", "sent"), [(1, [1, 0]), (60, [0, 1])])
def test_a_server_that_says_250_and_hangs_at_quit_has_it_and_is_not_asked_again(
    tmp_path: Path, patience_s: int, sent: list[int]
) -> None:
    with smtp_server(Mails(hangs_at="QUIT")) as mails:
        desk = Desk.at(tmp_path, channels=[mails.url.replace(f"cto={HANGS_S}", f"cto={patience_s}")])
        first = desk.look(0, critical("cron"), try_s=4 if patience_s == 60 else 60)
        assert [first.sent, desk.look(60, critical("cron")).sent] == sent
    assert len(mails.taken) == 1 and desk.results()[-1] == ("sent", "cron")


@pytest.mark.parametrize("stage", ["HELO", "DATA"])
def test_a_server_that_hangs_is_given_up_and_the_message_comes_again_under_its_id(tmp_path: Path, stage: str) -> None:
    with smtp_server(Mails(hangs_at=stage)) as mails:
        desk = Desk.at(tmp_path, channels=[mails.url])
        desk.look(0, critical("cron"))
        assert desk.results() == [("failed", "cron")]
        mails.hangs_at = ""
        assert desk.look(60, critical("cron")).sent == 1
    (message,) = alert_log.messages(desk.log)
    assert [message.id in subject for subject, _, _ in mails.taken] == [True]


def test_of_several_recipients_only_those_that_were_refused_get_it_again(tmp_path: Path) -> None:
    with smtp_server(Mails(refused_recipients=("bob@example.org",))) as mails:
        desk = Desk.at(tmp_path, channels=[mails.url.replace("to=ann@", "to=ann@example.org,bob@")])
        assert desk.look(0, critical("cron")).sent == 0
        mails.refused_recipients = ()
        assert desk.look(60, critical("cron")).sent == 1
    assert [recipient for _, _, recipient in mails.taken] == ["ann@example.org", "bob@example.org"]


@pytest.mark.parametrize("status", [500, 503, 408])
def test_a_web_server_in_trouble_is_asked_again(tmp_path: Path, status: int) -> None:
    with http_server(Posts(answers=[Answer(status)])) as posts:
        desk = Desk.at(tmp_path, channels=[posts.url()])
        desk.look(0, critical("cron"))
        assert desk.look(60, critical("cron")).sent == 1
    assert desk.results() == [("failed", "cron"), ("sent", "cron")] and len(posts.taken) == 1


def test_a_slow_answer_is_waited_for_and_a_hanging_one_has_failed(tmp_path: Path) -> None:
    with http_server(Posts(answers=[Answer(slow_s=0.3), Answer(hangs=True)])) as posts:
        desk = Desk.at(tmp_path, channels=[posts.url(limit_s=3)])
        assert desk.look(0, critical("cron")).sent == 1
        desk.look(60)
        posts.released.set()
        assert desk.results() == [("sent", "cron"), ("failed", "cron")]
        assert desk.look(120).sent == 1
    assert len(posts.taken) == 2


def test_a_redirect_that_leads_nowhere_is_no_success(tmp_path: Path) -> None:
    with http_server(Posts(otherwise=lambda: Answer(304))) as posts:
        desk = Desk.at(tmp_path, channels=[posts.url()])
        assert desk.look(0, critical("cron")).sent == 0
    assert desk.results() == [("failed", "cron")]


def test_what_does_not_listen_to_its_time_is_ended(tmp_path: Path) -> None:
    with http_server(Posts(otherwise=lambda: Answer(hangs=True))) as posts:
        desk = Desk.at(tmp_path, channels=[posts.url(limit_s=600)])
        desk.look(0, critical("cron"), try_s=1)
    assert desk.results() == [("unknown", "cron")]


def test_a_hanging_channel_holds_up_no_other(tmp_path: Path) -> None:
    with http_server(Posts(otherwise=lambda: Answer(hangs=True))) as hanging, http_server(Posts()) as posts:
        desk = Desk.at(tmp_path, channels=[hanging.url(limit_s=600), posts.url("ok")])
        look = threading.Thread(target=desk.look, args=(0, critical("cron")), kwargs={"try_s": 60})
        look.start()
        assert hanging.reached.wait(30)
        _wait_for(lambda: len(posts.taken) == 1)
        assert look.is_alive()
        # No one else is held up either: the run's lock is free while a server is slow.
        assert alerts.acknowledge(desk.paths, ["cron"], "", desk.began) == ["cron"]
        hanging.released.set()
        look.join(60)
    assert ("failed", "cron") in desk.results()


def test_forty_messages_arrive_once_each_and_in_order(tmp_path: Path) -> None:
    with http_server(Posts()) as posts, smtp_server(Mails()) as mails:
        desk = Desk.at(tmp_path)
        noted = [Noted(f"disk:{number}", "warning", f"number {number}") for number in range(40)]
        alerts.note(desk.paths, noted, desk.began)
        desk.settle(channels=[posts.url(), mails.url])
        assert desk.look(1, *[warning("disk", str(number)) for number in range(40)]).sent == 80
    want = [f"[tiny] WARNING: number {number}" for number in range(40)]
    assert [title.rpartition(" (")[0] for title in posts.titles] == want
    assert [subject.rpartition(" (")[0] for subject, _, _ in mails.taken] == want


def test_two_who_send_at_once_send_each_message_once(tmp_path: Path) -> None:
    with http_server(Posts(otherwise=lambda: Answer(slow_s=0.05))) as posts:
        desk = Desk.at(tmp_path)
        for number in range(10):
            alerts.note(desk.paths, [Noted(f"disk:{number}", "warning", f"number {number}")], desk.began)
        desk.settle(channels=[posts.url()])
        calls = [_sends(desk) for _ in range(3)]
        assert [call.wait(timeout=60) for call in calls] == [0, 0, 0]
        desk.look(5, *[warning("disk", str(number)) for number in range(10)])
    assert [title.rpartition(" (")[0].split()[-1] for title in posts.titles] == [str(number) for number in range(10)]


def test_whoever_is_killed_while_a_server_thinks_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with http_server(Posts(answers=[Answer(slow_s=0.9)])) as posts:
        desk = Desk.at(tmp_path)
        alerts.note(desk.paths, [Noted("cron", "critical", "dead"), Noted("disk", "warning", "full")], desk.began)
        desk.settle(channels=[posts.url()])
        call = _sends(desk)
        _wait_for(lambda: posts.tries == 1)
        call.kill()
        call.wait()
        # What it had started continues by itself, and is on record.
        _wait_for(lambda: desk.results() == [("sent", "cron")])
        assert desk.look(5, critical("cron"), warning("disk")).sent == 1
    assert len(posts.taken) == 2


def test_a_sender_that_is_killed_leaves_one_message_unknown_and_it_comes_again(tmp_path: Path) -> None:
    with http_server(Posts(answers=[Answer(hangs=True)])) as posts:
        desk = Desk.at(tmp_path)
        alerts.note(desk.paths, [Noted("cron", "critical", "dead"), Noted("disk", "warning", "full")], desk.began)
        desk.settle(channels=[posts.url(limit_s=600)])
        call = _sends(desk)
        assert posts.reached.wait(30)
        (child,) = _children(call.pid)
        assert b"opsctl.monitoring.alerts.send" in Path(f"/proc/{child}/cmdline").read_bytes()
        os.kill(child, signal.SIGKILL)
        assert call.wait(timeout=30) == 1
        told = desk.look(1, critical("cron"), warning("disk"))
        assert told.sent == 2 and len(told.lines) == 1
        assert desk.results() == [("unknown", "cron"), ("sent", "cron"), ("sent", "disk")]
    assert [title.split(":")[0] for title in posts.titles] == ["[tiny] CRITICAL", "[tiny] WARNING"]


def test_nothing_is_sent_while_what_becomes_of_it_cannot_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_server(Posts()) as posts:
        desk = Desk.at(tmp_path)
        alerts.note(desk.paths, [Noted("cron", "critical", "dead")], desk.began)
        desk.settle(channels=[posts.url()])
        desk.environment["PYTHONPATH"] = str(_full_disk(tmp_path))
        told = desk.look(1, critical("cron"))
        assert told.sent == 0 and str(desk.paths.alert_log) in told.lines[0] and posts.tries == 0
        del desk.environment["PYTHONPATH"]
        assert desk.look(2, critical("cron")).sent == 1
    assert len(posts.taken) == 1


def test_a_program_of_ones_own_is_handed_the_message(tmp_path: Path) -> None:
    program = tmp_path / "told.sh"
    program.write_text(f"#!/bin/sh\ncat >> {tmp_path}/told.jsonl\n")
    program.chmod(0o755)
    desk = Desk.at(tmp_path, channels=[f"hook:{program}"])
    assert desk.look(0, critical("cron")).sent == 1
    told = (tmp_path / "told.jsonl").read_text()
    assert '"run": "tiny"' in told and "cron is dead" in told
    program.write_text("#!/bin/sh\nexit 3\n")
    assert re.search(r"\b3\b", desk.look(60).lines[0].replace(str(program), ""))
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    desk.look(600, try_s=1)
    assert [result for result, _ in desk.results()] == ["sent", "failed", "failed"]


def test_a_program_that_has_the_url_is_not_run_while_nothing_is_owed(tmp_path: Path) -> None:
    program = tmp_path / "url.sh"
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\nexit 1\n")
    program.chmod(0o755)
    desk = Desk.at(tmp_path, channels=[f"command:{program}"])
    desk.look(0)
    assert not (tmp_path / "asked").exists()
    desk.look(60, critical("cron"))
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_a_channel_that_leads_nowhere_is_on_record_once_in_a_while_and_not_at_every_look(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, channels=["file:/no/such/url"])
    told = [desk.look(minute / 10, critical("cron")) for minute in range(5)]
    assert all("cannot read /no/such/url" in one.lines[0] for one in told)
    assert len([line for line in desk.log if line.event == "failed"]) == 1
    desk.look(60, critical("cron"))
    assert len([line for line in desk.log if line.event == "failed"]) == 2


def test_the_heartbeat_is_asked_for_only_while_all_is_well(tmp_path: Path) -> None:
    with http_server(Posts()) as posts:
        desk = Desk.at(tmp_path, heartbeat=f"http://127.0.0.1:{posts.port}/beat")
        desk.look(0, is_whole=True)
        desk.look(60, warning("disk"), is_whole=True)
        assert posts.tries == 2
        desk.look(120, critical("disk"), is_whole=True)
        desk.look(180, is_whole=False)
        assert posts.tries == 2
        posts.answers = [Answer(500)]
        assert "heartbeat: HTTP 500" in desk.look(240, is_whole=True).lines[-1]
        assert alert_log.channels_seen(alert_log.events(desk.paths), desk.began)[0].failing_since is not None
        assert not any("heartbeat" in line for line in desk.look(300, is_whole=True).lines)
        assert alert_log.channels_seen(alert_log.events(desk.paths), desk.began)[0].failing_since is None


def test_what_nobody_here_can_send_waits_for_who_can(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path)
    told = desk.look(0, critical("cron"))
    (line,) = told.lines
    assert told.made == 1 and re.search(r"\b1\b.*\[alerts\] channels\b.*opsctl alerts list", line)
    with http_server(Posts()) as posts:
        desk.settle(channels=[posts.url()])
        assert desk.look(1, critical("cron")).sent == 1


#: A look without findings, which sends what waits.
_SENDS = """
import sys
from opsctl.core.timestamps import now
from opsctl.monitoring.alerts.handle import notify
from opsctl.run.state.run_view import view
sys.exit(bool(notify(view(sys.argv[1]), [], (), now()).lines))
"""


def _sends(desk: Desk) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-P", "-c", _SENDS, str(desk.folder)]
    return subprocess.Popen(words, env=desk.environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _children(pid: int) -> list[int]:
    return [int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()]


def _wait_for(is_so: object, limit_s: float = 30.0) -> None:
    assert callable(is_so)
    moment = threading.Event()
    for _ in range(int(limit_s / 0.02)):
        if is_so():
            return
        moment.wait(0.02)
    raise AssertionError("not within the time")


def _full_disk(folder: Path) -> Path:
    """A folder whose modules let the senders' disk take no byte: what a full one says, where it cannot be filled."""
    (folder / "full").mkdir()
    (folder / "full" / "sitecustomize.py").write_text(
        "import opsctl.core.files.state_files as files\n"
        "def full(*a): raise OSError(28, 'No space left on device')\n"
        "files.write_all = full\n"
        "import opsctl.run.state.alert_log as log\n"
        "log.append_state = full\n"
    )
    return folder / "full"
