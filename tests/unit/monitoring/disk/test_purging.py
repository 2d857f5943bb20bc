from __future__ import annotations

import os
import re
import stat
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.core.dirwalk.parallel import walk
from opsctl.core.dirwalk.sequential import Folder
from opsctl.core.timestamps import now
from opsctl.monitoring.disk.json_output import purge_lines
from opsctl.monitoring.disk.purging import Finding, Going, checkpoint_of, find_purged

DAY_S = 86400.0


def put(path: Path, days: float, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    at = time.time() - days * DAY_S
    os.utime(path, (at, at))
    return path


def found(root: Path, within: float = 7.0) -> list[Going]:
    finding = Finding(30 * DAY_S, time.time() + within * DAY_S)
    each: list[Going] = []
    walk(root, finding, each.extend)
    return sorted(each, key=lambda one: one.place)


def test_what_find_says_nobody_has_touched_for_so_long_is_what_goes(tmp_path: Path) -> None:
    for number in range(40):
        put(tmp_path / f"{number % 3}" / f"{number:02}", number + 0.5)
    (tmp_path / "link").symlink_to("/etc/hostname")
    words = ["find", ".", "-type", "f", "-mmin", f"+{23 * 1440}", "-amin", f"+{23 * 1440}"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert sorted(f"./{one.place}" for one in found(tmp_path)) == sorted(said.split())
    assert len(found(tmp_path)) == 17


def test_reading_a_file_keeps_it(tmp_path: Path) -> None:
    path = put(tmp_path / "x", 50)
    os.utime(path, (time.time(), time.time() - 50 * DAY_S))
    assert found(tmp_path) == []


def test_a_time_long_before_every_calendar_is_the_first_that_can_be_told() -> None:
    """Some file systems keep any number."""
    finding = Finding(purge_after_s=30 * DAY_S, until_s=time.time())
    times = (-(10**12),) * 3
    finding.see(Folder("", -1), "x", os.stat_result((stat.S_IFREG | 0o600, 1, 1, 1, 0, 0, 5, *times)))
    (going,) = finding.take()
    assert (going.goes_at_s, going.size_bytes) == (0.0, 5)


def test_it_is_told_day_by_day_and_which_checkpoints_would_be_damaged(tmp_path: Path) -> None:
    put(tmp_path / "checkpoints" / "global_step100" / "manifest.json", 28, 5)
    put(tmp_path / "checkpoints" / "global_step100" / "zero" / "x.pt", 27, 6)
    put(tmp_path / "checkpoints" / "global_step200" / "manifest.json", 1)
    put(tmp_path / "notes", 29, 7)
    put(tmp_path / "gone already", 99, 1)
    told = find_purged(tmp_path, timedelta(days=30), timedelta(days=7), now())
    days = [(now() + timedelta(days=days)).date().isoformat() for days in (0, 1, 2, 3)]
    assert [(day.name, day.files, day.size_bytes) for day in told.days] == list(
        zip(days, [1, 1, 1, 1], [1, 7, 5, 6], strict=True)
    )
    (damaged,) = told.checkpoints
    assert (damaged.name, damaged.files, damaged.size_bytes) == ("checkpoints/global_step100", 2, 11)
    assert any(re.search(r"checkpoints/global_step100 .*\b2 ", line) for line in purge_lines(told))


@pytest.mark.parametrize(
    ("place", "checkpoint"),
    [
        ("checkpoints/global_step10/a/b", "checkpoints/global_step10"),
        ("global_step10/a", "global_step10"),
        ("global_step10", None),
        ("logs/x", None),
    ],
)
def test_a_checkpoint_is_known_by_its_name(place: str, checkpoint: str | None) -> None:
    assert checkpoint_of(place) == checkpoint
