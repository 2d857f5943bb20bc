"""Test where the kernel has mounted what, by its own table: nothing is touched, so nothing can hang."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.core.dirwalk import file_system
from opsctl.core.dirwalk.file_system import mount_point_of, mounted_under
from opsctl.core.dirwalk.parallel import walk
from tests.unit.core.dirwalk.trees import Noting, Places

NAME = "a\tb \\ c"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """root/in/NAME is a tmpfs with a file in it, root/again the root once more, root/plain a folder."""
    root = tmp_path / "root"
    for folder in (f"in/{NAME}", "again", "plain"):
        (root / folder).mkdir(parents=True)
    (root / "plain" / "file").touch()
    points = [str(root / "in" / NAME), str(root / "again")]
    words = [["-t", "tmpfs", "tmpfs", points[0]], ["--bind", str(root), points[1]]]
    done = []
    try:
        for one, point in zip(words, points, strict=True):
            if os.geteuid() or subprocess.run(["mount", *one], capture_output=True, timeout=10).returncode:
                pytest.skip("needs to mount something")
            done.append(point)
        (root / "in" / NAME / "elsewhere").touch()
        yield root
    finally:
        for point in reversed(done):
            subprocess.run(["umount", "--lazy", point], check=False, timeout=10)


def test_the_kernels_table_says_what_is_mounted_in_which_folder(mounted: Path) -> None:
    assert mounted_under(str(mounted)) == {"in": {NAME}, "": {"again"}}
    assert mounted_under(str(mounted / "plain")) == {}
    assert mount_point_of(mounted / "in" / NAME / "any" / "where") == str(mounted / "in" / NAME)


def test_a_walk_leaves_its_file_system_only_when_it_is_asked_to(mounted: Path) -> None:
    places = Places()
    walk(mounted, Noting(), places.take_in)
    assert set(places) == {".", "in", "plain", "plain/file"}


def test_the_deepest_mount_counts_in_whatever_order_the_kernel_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = ("/scratch/fast", "/scratch", "/", "/scratch/fast\\040disk")
    lines = (f"{number} 1 0:{number} / {point} rw - ext4 x rw\n" for number, point in enumerate(points))
    (tmp_path / "mountinfo").write_text("".join(lines))
    monkeypatch.setattr(file_system, "_MOUNTS", tmp_path / "mountinfo")
    assert mount_point_of(Path("/scratch/fast/run/output")) == "/scratch/fast"
    assert mount_point_of(Path("/scratch/faster")) == "/scratch"
    assert mount_point_of(Path("/scratch/fast disk/run")) == "/scratch/fast disk"
    assert mount_point_of(Path("/home/ann")) == "/"
