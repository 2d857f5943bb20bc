from __future__ import annotations

import errno
import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.core.timestamps import iso, now
from opsctl.monitoring.alerts.handle import notify
from opsctl.run.state import alerts
from opsctl.run.state.alerts import Noted
from tests.unit.cli.called import go_into, opsctl
from tests.unit.monitoring.alerts.desk_of import Desk
from tests.unit.monitoring.alerts.servers import Answer, Posts, http_server

CRON = Noted("cron", "critical", "no tick for 2 h", "opsctl cron start")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk.at(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    go_into(tmp_path, monkeypatch)
    return made


def test_the_list_says_what_is_open_who_looks_after_it_and_what_waits(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl("alerts", "list") == 0
    assert capsys.readouterr().out == "no open alerts\n"
    alerts.note(desk.paths, [CRON], now() - timedelta(hours=2))
    with http_server(Posts(otherwise=lambda: Answer(500))) as posts:
        desk.settle(channels=[posts.url()])
        told = notify(desk.run, [], (), now(), environment=desk.environment)
    assert "500" in "".join(told.lines)
    assert opsctl("alerts", "ack", "cron", "--why", "on it") == 0
    assert opsctl("alerts", "list", "--all") == 0
    shown = capsys.readouterr()
    assert re.search(r"CRITICAL +cron +2:00:", shown.out) and ": on it" in shown.out
    assert re.search(r"0:00:0\d.*\b500\b", shown.out) and re.search(r"\b1 .*2:0", shown.out)
    assert opsctl("alerts", "list", "--json") == 0
    found = json.loads(capsys.readouterr().out)["alerts"]
    assert found["open"][0]["acknowledged_why"] == "on it" and found["open"][0]["acknowledged_by"]
    (channel,) = found["channels"]
    assert channel["waiting"] == 1 and channel["failing_since"]
    assert "messages" not in found


def test_a_test_says_of_each_channel_what_happened(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    with http_server(Posts()) as good, http_server(Posts(otherwise=lambda: Answer(404))) as bad:
        desk.settle(channels=[good.url("good"), bad.url("bad")], escalate_to=["file:/nowhere"])
        assert opsctl("alerts", "test") == 1
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 3 and "404" not in lines[0] and "404" in lines[1]
        assert re.match(r"file:/nowhere: .*/nowhere: No such file", lines[2])
        assert len(good.taken) == 1 and "test by" in good.titles[0]
        assert opsctl("alerts", "test", "--dry-run") == 0 and len(good.taken) == 1
        capsys.readouterr()
        assert opsctl("alerts", "test", "nobody") == 1
    assert "json://127.0.0.1" in capsys.readouterr().err, "it names the channels that exist"
    # Nothing of a test is tried again.
    notify(desk.run, [], (), now(), environment=desk.environment)
    assert len(good.taken) == 1


@pytest.mark.parametrize("named", [(), ("mail",)])
def test_a_test_without_any_channel_says_that_there_is_none_and_how_to_have_one(
    desk: Desk, named: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl("alerts", "test", *named) == 1
    said = capsys.readouterr().err
    assert "channels = [" in said and "[alerts]" in said and "~/.config/opsctl/profile.toml" in said


@pytest.mark.parametrize("until", ["2:00:00", "1-0", "23:59", "2:30"])
def test_a_silence_until_a_time_or_for_so_long(desk: Desk, until: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("alerts", "silence", until, "--dry-run") == 0 and alerts.silence_of(desk.paths, now()) is None
    assert opsctl("alerts", "silence", until, "--why", "maintenance") == 0
    silence = alerts.silence_of(desk.paths, now())
    assert silence is not None and silence.why == "maintenance"
    assert opsctl("alerts", "list") == 0 and "silent until" in capsys.readouterr().out
    assert opsctl("alerts", "unsilence") == 0 and alerts.silence_of(desk.paths, now()) is None


@pytest.mark.parametrize("until", ["never", "0", "99:99", "70-0", "2020-01-01T10:00", ""])
def test_a_silence_that_is_none_is_wrong_usage(desk: Desk, until: str) -> None:
    assert opsctl("alerts", "silence", until) == 2


def test_what_is_not_open_cannot_be_acknowledged(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    alerts.note(desk.paths, [CRON], now())
    assert opsctl("alerts", "ack", "corn") == 1 and opsctl("alerts", "ack") == 2
    assert re.search(r"corn.*\bcron\b", capsys.readouterr().err)
    assert opsctl("alerts", "ack", "--all", "--dry-run") == 0
    assert not alerts.open_alerts(desk.paths)["cron"].acknowledged_by
    assert opsctl("alerts", "ack", "--all") == 0
    assert alerts.open_alerts(desk.paths)["cron"].acknowledged_by


def test_a_watch_tells_what_it_finds_once(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    (desk.folder / "output" / "kill-switch").touch()
    with http_server(Posts()) as posts:
        desk.settle(channels=[posts.url()])
        codes = {opsctl("watch", "all", "--alert"), opsctl("watch", "all", "--alert")}
    assert len(codes) == 1 and len(posts.taken) == 1, capsys.readouterr()
    assert "kill_switch" in alerts.open_alerts(desk.paths) and "kill_switch" in posts.taken[0]["message"]


def test_before_the_first_submit_there_is_nothing_to_list(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    (desk.folder / "output").rmdir()
    assert opsctl("alerts", "list") == 1
    assert "tiny" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["training:held 30"], {"training:held 30"}),
        (["training:held", "30"], {"training:held 30"}),
        (["training:held"], {"training:held 30", "training:held 31"}),
        (["training", "cron"], {"training:held 30", "training:held 31", "training:absent", "cron"}),
    ],
    ids=["whole", "without quotes", "its first word", "checks"],
)
def test_a_key_is_acknowledged_as_somebody_types_it_at_night(
    desk: Desk, typed: list[str], meant: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    held = [Noted(f"training:{word}", "critical", "held") for word in ("held 30", "held 31", "absent")]
    alerts.note(desk.paths, [CRON, *held], now())
    assert opsctl("alerts", "ack", *typed, "--dry-run") == 0
    assert opsctl("alerts", "ack", *typed) == 0
    found = {key for key, one in alerts.open_alerts(desk.paths).items() if one.acknowledged_by}
    assert found == meant
    assert all(key in line for key in meant for line in capsys.readouterr().err.splitlines())
    assert opsctl("alerts", "ack", "trainin") == 1 == opsctl("alerts", "ack", "trainin", "--dry-run")
    assert "'training:held 31'" in capsys.readouterr().err


def test_what_several_checks_say_alike_is_one_line(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    alerts.note(desk.paths, [Noted(key, "warning", "Slurm does not answer") for key in ("queue", "lease")], now())
    assert opsctl("alerts", "list") == 0
    assert "WARNING  queue, lease  0:00:0" in capsys.readouterr().out


def test_who_replaces_somebodys_silence_is_told_so(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("alerts", "silence", "2:00:00") == 0
    first = alerts.silence_of(desk.paths, now())
    assert first is not None
    capsys.readouterr()
    assert opsctl("alerts", "silence", "1:00:00", "--dry-run") == 0 == opsctl("alerts", "silence", "1:00:00")
    assert all(iso(first.until) in line for line in capsys.readouterr().err.splitlines())
    second = alerts.silence_of(desk.paths, now())
    assert second is not None and second.until < first.until
    assert opsctl("alerts", "unsilence") == 0
    capsys.readouterr()
    assert opsctl("alerts", "silence", "3:00:00") == 0 and iso(second.until) not in capsys.readouterr().err


def test_a_full_disk_is_said_with_what_was_left_undone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    alerts.note(desk.paths, [CRON], now())
    monkeypatch.setattr(alerts, "write_state", full)
    for words in (("ack", "cron"), ("silence", "1:00:00")):
        assert opsctl("alerts", *words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "space" in line and str(desk.paths.output) in line
    assert not alerts.open_alerts(desk.paths)["cron"].acknowledged_by and alerts.silence_of(desk.paths, now()) is None
