"""A planted secret is in no output, state file, log, command line or environment, whatever is called and fails."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.unit.cli.called import go_into, opsctl
from tests.unit.monitoring.alerts.desk_of import Desk, critical
from tests.unit.monitoring.alerts.servers import Answer, Posts, http_server

SECRET = "Pl4ntedS3cretTokenXq9"
FORMS = (SECRET.encode(), SECRET.lower().encode(), SECRET[::-1].encode())
COMMANDS = (
    ["alerts", "test"],
    ["alerts", "test", "--json"],
    ["alerts", "test", "nobody"],
    ["alerts", "list", "--all"],
    ["alerts", "list", "--all", "--json"],
    ["alerts", "silence", "1:00:00", "--json"],
    ["alerts", "unsilence"],
    ["alerts", "ack", "--all"],
    ["status"],
    ["plan"],
    ["render"],
)


def planted(kind: str, desk: Desk, url: str) -> str:
    """The channel as it is written; its secret is where the kind says."""
    secret = desk.folder / "secret.url"
    secret.touch(mode=0o600)
    secret.write_text(url)
    desk.environment["PLANTED"] = url
    return {
        "file": f"file:{secret}",
        "env": "env:PLANTED",
        "command": f"command:cat {secret}",
        "profile": url,
    }[kind]


@pytest.mark.parametrize(
    ("kind", "fate"),
    [
        ("env", "refused"),
        ("command", "down"),
        ("profile", "unreadable"),
        pytest.param("file", "taken", marks=pytest.mark.nightly),
        pytest.param("profile", "refused", marks=pytest.mark.nightly),
    ],
)
def test_a_secret_is_nowhere_but_where_it_was_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: str, fate: str
) -> None:
    answer = Answer(403, body=f"bad token {SECRET}", reason=f"{SECRET} is not known") if fate == "refused" else Answer()
    with http_server(Posts(otherwise=lambda: answer)) as posts:
        port = 9 if fate == "down" else posts.port
        url = f"json://ann:{SECRET}@127.0.0.1:{port}/{SECRET}?cto=30&rto=30"
        desk = Desk.at(tmp_path)
        channel = planted(kind, desk, url if fate != "unreadable" else f"jsons://ann:{SECRET}@")
        desk.settle(channels=[channel], heartbeat="env:PLANTED")
        told = [desk.look(0, critical("cron"))]
        for name, value in desk.environment.items():
            monkeypatch.setenv(name, value)
        go_into(desk.folder, monkeypatch)
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        for words in COMMANDS:
            opsctl(*words)
        told += [desk.look(200, critical("cron"), is_whole=True), desk.look(400, is_whole=True)]
        assert (posts.tries > 0) is (fate in ("taken", "refused"))
    shown = capfd.readouterr()
    for output in (repr(told), shown.out, shown.err):
        assert not any(form.decode() in output for form in FORMS), output
    assert "Traceback" not in shown.err
    kept = {desk.folder / "secret.url", desk.folder / ".config" / "opsctl" / "profile.toml"}
    files = [path for path in desk.folder.rglob("*") if path.is_file() and path not in kept]
    assert any(path.name == "alerts.jsonl" for path in files)
    for path in files:
        assert not any(form in path.read_bytes() for form in FORMS), path


def test_a_sender_shows_no_secret_to_those_who_look_at_processes(tmp_path: Path) -> None:
    with http_server(Posts(otherwise=lambda: Answer(hangs=True))) as posts:
        desk = Desk.at(tmp_path)
        url = f"json://ann:{SECRET}@127.0.0.1:{posts.port}/{SECRET}?rto=60"
        desk.settle(channels=[planted("env", desk, url)])
        look = threading.Thread(target=desk.look, args=(0, critical("cron")), kwargs={"try_s": 60})
        look.start()
        assert posts.reached.wait(30)
        senders = [
            process
            for process in Path("/proc").iterdir()
            if process.name.isdigit()
            and b"opsctl.monitoring.alerts.send" in _of(process / "cmdline")
            and _is_ours(process)
        ]
        assert senders
        for process in senders:
            for what in ("cmdline", "environ"):
                assert not any(form in _of(process / what) for form in FORMS)
        posts.released.set()
        look.join(60)


def test_a_run_file_with_a_secret_is_refused_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    desk = Desk.at(tmp_path)
    go_into(desk.folder, monkeypatch)
    file = tmp_path / "run.toml"
    text = file.read_text()
    for table in (f'channels = ["slack://{SECRET}/B/C"]', f'channels = "slack://{SECRET}"', f'heartbeat = "{SECRET}"'):
        file.write_text(f"{text}\n[alerts]\n{table}\n")
        for words in (["plan"], ["render"], ["submit", "--dry-run"], ["alerts", "list"], ["status"]):
            assert opsctl(*words) != 0 or words[0] == "alerts"
            shown = capfd.readouterr()
            assert SECRET not in shown.out + shown.err
            assert "[alerts]" in shown.err or words[0] == "alerts"


def _of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _is_ours(process: Path) -> bool:
    """Return whether this test's process started it."""
    status = _of(process / "status").decode()
    return f"PPid:\t{os.getpid()}\n" in status
