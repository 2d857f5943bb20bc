"""Alerts of a run whose own file system, a real one, is full to the last byte, or to the last file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.run.state import alerts
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


def test_the_room_of_the_reserve_is_kept_again_once_there_is_space(disk: Path, posts: Posts) -> None:
    desk = Desk.at(disk, channels=[posts.url()])
    desk.look(0, critical("cron"))
    assert desk.paths.alert_reserve.exists()
    fill_with_data(disk)
    desk.look(60, FULL, critical("cron"))
    alerts.acknowledge(desk.paths, ["disk"], "I delete checkpoints", desk.began)
    assert not desk.paths.alert_reserve.exists()
    (disk / "data").unlink()
    assert desk.look(120, FULL, critical("cron")).sent == 0
    assert desk.paths.alert_reserve.exists()
    assert alerts.open_alerts(desk.paths)["disk"].acknowledged_why == "I delete checkpoints"


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


def test_nothing_is_sent_where_the_room_of_the_reserve_is_full_too(disk: Path, posts: Posts) -> None:
    desk = Desk.at(disk, channels=[posts.url()])
    desk.look(0)
    desk.paths.alert_reserve.unlink()
    fill_with_data(disk)
    with pytest.raises(OpsctlError, match="No space left"):
        desk.look(60, FULL)
    assert posts.tries == 0
