"""Entries are only skipped if they have the usual modes: never if one thing differs, at any place."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from opsctl.core.dirwalk.sequential import BEGINNING, Stretch
from opsctl.run.permissions.apply import Opening, Seen

GID = os.getegid()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder of the group with correct files and a correct folder, which come first in a walk."""
    root = tmp_path / "root"
    for number in range(100):
        made(root / "a" / f"{number:03}")
    made(root / "a" / "b" / "x")
    return root


def folder(path: Path, mode: int = 0o2770) -> Path:
    for one in [one for one in (path, *path.parents) if not one.exists()][::-1]:
        one.mkdir()
        os.chown(one, -1, GID)
        one.chmod(mode)
    return path


def made(path: Path, mode: int = 0o660) -> Path:
    folder(path.parent)
    path.write_text("x")
    os.chown(path, -1, GID)
    path.chmod(mode)
    return path


def went(root: Path, fixes: bool = False, only_counts: bool = False) -> Seen:
    """Return the results of one process, so that what it learned applies to later entries."""
    opening = Opening(GID, fixes, only_counts=only_counts)
    stretch = Stretch(root, opening)
    stretch.go(list(BEGINNING), 10**9, float("inf"))
    stretch.close()
    return opening.take()


def wrong(root: Path) -> set[str]:
    return {place for count in went(root).troubles.values() for place in count.examples}


def test_all_are_counted_and_one_that_differs_is_found_among_many_as_find_finds_it(root: Path) -> None:
    for number in range(300):
        made(root / "c" / f"{number:03}")
    (root / "c" / "150").chmod(0o640)
    made(root / "c" / "d" / "y").parent.chmod(0o770)
    group = f"( -type d ( ! -perm -2070 -o ! -gid {GID} ) -o -type f ( ! -perm -060 -o ! -gid {GID} ) )"
    said = subprocess.run(["find", ".", *group.split()], cwd=root, capture_output=True, text=True, check=True).stdout
    assert {f"./{place}" for place in wrong(root)} == set(said.split()) == {"./c/150", "./c/d"}
    everything = subprocess.run(["find", "."], cwd=root, capture_output=True, text=True, check=True).stdout
    assert went(root).entries == len(everything.splitlines())


def test_a_mode_that_is_well_is_so_in_this_group_alone(root: Path) -> None:
    theirs = made(root / "c" / "theirs")
    try:
        os.chown(theirs, -1, GID + 1)
    except PermissionError:
        pytest.skip("needs to give a file to another group")
    assert wrong(root) == {"c/theirs"}


@pytest.mark.parametrize(
    ("kept", "mode"), [(".opsctl/revisions", 0o2750), (".opsctl/requests", 0o3770), ("apart", 0o3770)]
)
def test_what_only_its_maker_may_write_is_well_there_and_nowhere_else(root: Path, kept: str, mode: int) -> None:
    folder(root / kept).chmod(mode)
    made(root / kept / "file", 0o640)
    folder(root / kept / "folder", 0o2750)
    assert wrong(root) == set()
    made(root / "files" / "file", 0o640)
    folder(root / "folders")
    folder(root / "folders" / "folder", 0o2750)
    assert wrong(root) == {"files/file", "folders/folder"}


def test_a_folder_that_is_called_as_a_private_run_elsewhere_is_gone_into(root: Path) -> None:
    folder(root / "c" / "run" / ".opsctl", 0o700)
    (root / "c").chmod(0o2770)
    made(root / "d" / "run" / "file", 0o600)
    assert wrong(root) == {"d/run/file"}
