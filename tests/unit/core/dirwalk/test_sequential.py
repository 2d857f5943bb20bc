from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from opsctl.core.dirwalk import sequential as module
from opsctl.core.dirwalk.sequential import BEGINNING, Folder, Pending, Stretch, share_of_bytes
from tests.unit.core.dirwalk.trees import Noting, grow

NEVER = float("inf")


def went(root: Path, most: int = 10**9, visitor: Noting | None = None) -> tuple[list[str], list[Pending]]:
    stack = list(BEGINNING)
    stretch = Stretch(root, visitor or Noting())
    stretch.go(stack, most, NEVER)
    stretch.close()
    return stretch.visitor.take(), stack


def test_all_that_find_finds_is_seen_once_whatever_its_name(tmp_path: Path) -> None:
    grow(tmp_path, 9, 3)
    for name in (b"\xff\xfe", b"new\nline", b"-rf", b" ", b"\\", "é".encode()):
        (Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)) / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to("/")
    os.mkfifo(tmp_path / "fifo")
    found = subprocess.run(["find", ".", "-print0"], cwd=tmp_path, capture_output=True, check=True).stdout
    places, _ = went(tmp_path)
    assert sorted(os.fsencode(place) for place in places) == sorted(
        one.removeprefix(b"./") for one in found.split(b"\0") if one
    )


def test_it_stops_at_its_number_of_entries_and_can_say_where(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name / "inner").mkdir(parents=True)
    assert went(tmp_path, 2) == ([".", "a", "b"], [Pending("", "b"), Pending("b"), Pending("a")])


def test_a_stretch_whose_time_is_over_still_gets_on(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number:03}").touch()
    stack, rounds = list(BEGINNING), 0
    while stack:
        Stretch(tmp_path, Noting()).go(stack, 10**9, time.monotonic() - 1)
        rounds += 1
    assert rounds == 4


def test_few_folders_are_pending_where_one_has_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FOLDERS", 5)
    for number in range(40):
        (tmp_path / f"{number:02}" / "inner").mkdir(parents=True)
    stack, stretch, most = list(BEGINNING), Stretch(tmp_path, Noting()), 0
    while stack:
        stretch.go(stack, 3, NEVER)
        most = max(most, len(stack))
    assert most <= 7 and sorted(stretch.visitor.take()) == sorted(went(tmp_path)[0])


def test_a_link_that_takes_a_folders_place_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    root, private = tmp_path / "root", tmp_path / "private"
    (root / "a" / "b").mkdir(parents=True)
    (private / "b").mkdir(parents=True)
    (private / "diary").touch()

    class Swapping(Noting):
        def goes_into(self, folder: Folder, name: str) -> bool:
            if name == "a":  # it has been seen to be a folder, and is gone into next
                (root / "a").rename(tmp_path / "aside")
                (root / "a").symlink_to(private)
            return True

    assert went(root, visitor=Swapping()) == ([".", "a"], [])
    # Nor does one that takes the place of a folder that is pending from an earlier walk.
    stretch = Stretch(root, Noting())
    stretch.go([Pending("a"), Pending("a/b"), Pending("b", "x")], 100, NEVER)
    assert stretch.visitor.take() == [] and stretch.unread == []


def test_a_folder_that_is_moved_out_of_the_root_is_not_followed(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (tmp_path / "private").touch()
    stretch, stack = Stretch(root, Noting()), list(BEGINNING)
    stretch.go(stack, 1, NEVER)
    (root / "a").rename(tmp_path / "a")
    stretch.go(stack, 100, NEVER)
    assert stretch.visitor.take() == [".", "a"]


def test_a_visitor_says_where_the_walk_does_not_go(tmp_path: Path) -> None:
    grow(tmp_path, 3, 1)
    places, _ = went(tmp_path, visitor=Noting(stays_out=["folder0"]))
    assert places == [".", "folder0"]


def test_what_vanishes_is_passed_over_and_what_is_closed_or_too_deep_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsctl.core.dirwalk.sequential.DEEPEST", 2)
    (tmp_path / "a" / "b" / "c" / "d").mkdir(parents=True)
    stretch = Stretch(tmp_path, Noting())
    stretch.go([*BEGINNING, Pending("gone/further")], 100, NEVER)
    assert stretch.visitor.take() == [".", "a", "a/b", "a/b/c"]
    assert [one.place for one in stretch.unread] == ["a/b/c"] and "2 folders" in stretch.unread[0].why


def test_a_file_of_several_names_is_counted_once_in_all(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    for name in "bc":
        (tmp_path / name).hardlink_to(tmp_path / "a")
    told = subprocess.run(["du", "-s", "-B1", str(tmp_path)], capture_output=True, text=True, check=True).stdout
    shares = [share_of_bytes(one.lstat()) for one in (tmp_path, *tmp_path.iterdir())]
    assert abs(sum(shares) - int(told.split()[0])) < 3


def test_what_vanishes_before_it_is_looked_at_takes_nothing_else_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_EACH", 3)
    for name in "abcdefg":
        (tmp_path / name).touch()

    class Removing(Noting):
        def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
            super().see(folder, name, seen)
            if name == "a":
                (tmp_path / "e").unlink()

    stretch = Stretch(tmp_path, Removing())
    stretch.go(list(BEGINNING), 100, NEVER)
    assert stretch.visitor.take() == [".", "a", "b", "c", "d", "f", "g"]
    assert (stretch.entries, stretch.unread) == (6, [])
