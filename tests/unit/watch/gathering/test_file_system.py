from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.watch.gathering import file_system
from opsctl.watch.gathering.file_system import FileSystems, mount_point_of
from opsctl.watch.gathering.program import Said


def test_what_only_root_may_use_is_neither_used_nor_free(monkeypatch: pytest.MonkeyPatch) -> None:
    # 100 blocks of 4,096 bytes, 40 free, 30 of them for everybody: 60 of 90 are used. 10 inodes, 4 free.
    monkeypatch.setattr(file_system, "ask", lambda *_: Said("100 40 30 4096 10 4\n"))
    filled = FileSystems().filled(Path("/anywhere"))
    assert (filled.used_bytes, filled.limit_bytes) == (60 * 4096, 90 * 4096)
    assert (filled.used_inodes, filled.limit_inodes) == (6, 10)


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
