from __future__ import annotations

import os
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from opsctl.core.dirwalk.file_system import Filled
from opsctl.core.dirwalk.parallel import Budget
from opsctl.core.errors import OpsctlError
from opsctl.monitoring.disk import usage
from opsctl.monitoring.disk.json_output import disk_lines, printed_disk, uses
from opsctl.monitoring.disk.usage import FOLDERS, USERS, Counted, counted, growth, read_history
from opsctl.run.state.space import SpaceLine
from tests.unit.core.dirwalk.trees import grow, there
from tests.unit.monitoring.jobs import NOW

DAY = timedelta(days=1)


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def du(folder: Path) -> int:
    return int(
        subprocess.run(["du", "-s", "-B1", str(folder)], capture_output=True, text=True, check=True).stdout.split()[0]
    )


def test_users_and_folders_add_up_to_what_du_says(tmp_path: Path, own: dict[str, str]) -> None:
    root = tmp_path / "root"
    for name, size in (("checkpoints/a/b", 300_000), ("checkpoints/c", 5_000), ("logs/d", 70_000), ("e", 9_000)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * size)
    if os.geteuid() == 0:
        os.chown(root / "logs" / "d", 65534, 65534)
    known = counted(root, 60, NOW, environment=own)
    assert known.is_all
    folders = {name: size for name, (size, _) in known.folders.items()}
    own_blocks = root.stat().st_blocks * 512
    assert folders == {
        "checkpoints": du(root / "checkpoints"),
        "logs": du(root / "logs"),
        ".": own_blocks + (root / "e").stat().st_blocks * 512,
    }
    assert sum(folders.values()) == sum(size for size, _ in known.users.values()) == du(root)
    if os.geteuid() == 0:
        assert known.users["nobody"] == ((root / "logs" / "d").stat().st_blocks * 512, 1)
    assert known.entries == len(there(root))


def test_a_walk_that_is_out_of_time_says_so_and_tells_no_growth(
    tmp_path: Path, own: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(tmp_path / "root", 20, 20)
    monkeypatch.setattr(usage, "Budget", lambda _: Budget(entries=100))
    known = counted(tmp_path / "root", 60, NOW, environment=own)
    assert (known.is_all, known.entries) == (False, 101)
    assert read_history(tmp_path / "root", own) == []
    told = printed_disk(known, [look("user root", NOW - DAY, 0)], Filled())
    assert not told.is_all and {use.bytes_a_day for use in told.users} == {None}
    assert "101 entries" in next(disk_lines(told, [USERS]))


def test_what_could_not_be_looked_into_is_counted(
    tmp_path: Path, own: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        (tmp_path / "root" / name).mkdir(parents=True)
    monkeypatch.setattr("opsctl.core.dirwalk.sequential.DEEPEST", 0)
    assert counted(tmp_path / "root", 60, NOW, environment=own).unread == 4


def by_users(users: dict[str, tuple[int, int]]) -> Counted:
    return Counted(Path("/f"), NOW, users, {}, entries=len(users))


def look(name: str, at: datetime, used: int) -> SpaceLine:
    return SpaceLine(name=name, at=at, used_bytes=used)


def test_growth_is_what_came_within_a_week() -> None:
    history = [look("x", NOW - 30 * DAY, 0), look("x", NOW - 5 * DAY, 1000), look("x", NOW - DAY, 1900)]
    assert growth(3000, NOW, history) == pytest.approx(400.0)
    assert growth(3000, NOW, history[:1]) is None
    assert growth(3000, NOW, [look("x", NOW - timedelta(minutes=1), 0)]) is None
    assert growth(500, NOW, history) == pytest.approx(-100.0)


def test_what_grows_most_comes_first_and_says_when_it_is_full() -> None:
    now = by_users({"ann": (10_000, 1), "ben": (500, 1), "cleo": (90_000, 1), "dan": (400, 1)})
    history = [look(f"user {name}", NOW - 2 * DAY, used) for name, used in (("ann", 8_000), ("ben", 100), ("dan", 900))]
    assert [(row.name, row.bytes_a_day) for row in uses(now, USERS, history, None)] == [
        ("ann", 1000.0),
        ("ben", 200.0),
        ("cleo", None),
        ("dan", -250.0),
    ]
    told = printed_disk(now, history, Filled(used_bytes=100, limit_bytes=5_100))
    assert [(use.name, use.full_in_s) for use in told.users] == [
        ("ann", 5 * 86400.0),
        ("ben", 25 * 86400.0),
        ("cleo", None),
        ("dan", None),
    ]
    lines = list(disk_lines(told, [USERS, FOLDERS]))
    assert "5.0 days" in next(line for line in lines if "ann" in line)


def test_totals_are_kept_and_growth_is_seen_from_them(tmp_path: Path, own: dict[str, str]) -> None:
    root = tmp_path / "root"
    (root / "data").mkdir(parents=True)
    counted(root, 60, NOW - DAY, environment=own)
    (root / "data" / "x").write_bytes(b"x" * 1_000_000)
    known = counted(root, 60, NOW, environment=own)
    (row, *_) = uses(known, FOLDERS, read_history(root, own), None)
    assert row.name == "data" and row.bytes_a_day is not None and abs(row.bytes_a_day - 1_000_000) < 10_000
    assert read_history(tmp_path, own) == []


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, own: dict[str, str]) -> None:
    with pytest.raises(OpsctlError, match=r"none: No such file"):
        counted(tmp_path / "none", 60, NOW, environment=own)
