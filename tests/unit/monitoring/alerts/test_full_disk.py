"""Alerts of a run whose own file system, a real one, is full to the last byte, or to the last file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.run.state import alert_log, alerts
from tests.unit.monitoring.alerts.desk_of import Desk, critical
from tests.unit.monitoring.alerts.servers import Answer, Posts, http_server
from tests.unit.run.state.test_kill_switch_full_disk import fill_with_data, fill_with_files

pytestmark = pytest.mark.usefixtures("forked_senders")
FULL = critical("disk", text="the run's disk is full")


def fill_with_both(folder: Path) -> None:
    """Leave neither a byte nor a file."""
    fill_with_data(folder)
    fill_with_files(folder)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory, of 1 MiB and 128 files."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=128,mode=755", "none", str(folder)]
    if os.getuid() or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("needs to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def posts() -> Iterator[Posts]:
    with http_server(Posts()) as found:
        yield found


@pytest.mark.parametrize("fill", [fill_with_data, fill_with_both])
def test_that_the_runs_own_disk_is_full_is_sent_once(disk: Path, posts: Posts, fill: Callable[[Path], None]) -> None:
    desk = Desk.at(disk, channels=[posts.url()])
    desk.look(0)
    fill(disk)
    assert desk.look(60, FULL).sent == 1
    assert [desk.look(60 + minute, FULL).sent for minute in (1, 60, 120)] == [0, 0, 0]
    assert desk.look(240, FULL, critical("cron")).sent == 1
    assert [title.split(": ", 1)[1].rpartition(" (")[0] for title in posts.titles] == [FULL.text, "cron is dead"]


def test_after_a_full_disk_the_records_are_complete_and_say_that_it_was_full(disk: Path, posts: Posts) -> None:
    desk = Desk.at(disk, channels=[posts.url()])
    desk.look(0, critical("cron"))
    fill_with_data(disk)
    desk.look(60, FULL, critical("cron"))
    alerts.acknowledge(desk.paths, ["disk"], "I delete checkpoints", desk.began)
    before = [(line.event, line.id) for line in desk.log]
    (disk / "data").unlink()
    told = desk.look(120, FULL, critical("cron"))
    assert told.sent == 0 and any("no space" in line and "alerts" in line for line in told.lines), told.lines
    assert [(line.event, line.id) for line in desk.log if line.event != "full"] == before
    assert sum(line.event == "full" for line in desk.log) == 1
    assert alerts.open_alerts(desk.paths)["disk"].acknowledged_why == "I delete checkpoints"
    assert desk.paths.alerts.read_text().count('"I delete checkpoints"') == 1
    assert desk.look(180, critical("cron")).sent == 1  # its end
    assert not any("no space" in line for line in desk.look(240).lines)
    assert [title.split("] ")[1].split(":")[0] for title in posts.titles] == [
        "CRITICAL",
        "CRITICAL",
        "recovered",
        "recovered",
    ]


def test_a_channel_that_fails_while_the_disk_is_full_gets_the_message_once_it_answers(disk: Path, posts: Posts) -> None:
    desk = Desk.at(disk, channels=[posts.url()])
    desk.look(0)
    posts.answers = [Answer(503)]
    fill_with_data(disk)
    assert desk.look(60, FULL).sent == 0
    assert desk.look(180, FULL).sent == 1 and len(posts.taken) == 1
    assert desk.results() == [("failed", "disk"), ("sent", "disk")]


def test_a_first_alert_of_all_is_sent_from_a_full_disk_where_a_submit_has_kept_room(disk: Path, posts: Posts) -> None:
    desk = Desk.at(disk, channels=[posts.url()])
    alerts.keep_room(desk.paths)
    fill_with_data(disk)
    assert [desk.look(60, FULL).sent, desk.look(120, FULL).sent] == [1, 0]


def test_a_training_notes_an_alert_on_a_full_disk_and_a_look_with_channels_sends_it(disk: Path, posts: Posts) -> None:
    desk = Desk.at(disk)
    alerts.keep_room(desk.paths)
    fill_with_data(disk)
    noted = [alerts.Noted("cron", "critical", "the cron is dead")]
    assert [alerts.note(desk.paths, noted, desk.began) for _ in range(3)] == [1, 0, 0]
    profile = disk.parent / ".config" / "opsctl" / "profile.toml"
    profile.parent.mkdir(parents=True)
    profile.touch(mode=0o600)
    profile.write_text(f"[alerts]\nchannels = ['{posts.url()}']\n")
    desk.environment["HOME"] = str(disk.parent)
    assert desk.look(5, FULL, critical("cron")).sent == 2


def test_a_reserve_with_no_room_left_is_written_to_no_more_and_nothing_is_sent(disk: Path, posts: Posts) -> None:
    desk = Desk.at(disk, channels=[posts.url()])
    desk.look(0)
    fill_with_data(disk)
    lines = [line for number in range(600) for line in _kept(desk, number)]
    assert 20 < len(lines) < 600
    assert [one.why for one in desk.log if one.event == "silenced"] == lines
    with pytest.raises(OpsctlError, match="No space left"):
        desk.look(60, FULL)
    assert posts.tries == 0


def _kept(desk: Desk, number: int) -> list[str]:
    why = f"{number} " + "x" * 300
    try:
        alert_log.append_event(desk.paths, alert_log.Event(event="silenced", at=desk.began, why=why))
    except OSError:
        return []
    return [why]
