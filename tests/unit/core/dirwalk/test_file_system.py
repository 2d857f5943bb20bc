from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from opsctl.core.dirwalk import file_system
from opsctl.core.dirwalk.file_system import FileSystems
from opsctl.core.process import Said, ask
from tests.unit.core.dirwalk.test_parallel import hung

__all__ = ["hung"]


def test_what_only_root_may_use_is_neither_used_nor_free(monkeypatch: pytest.MonkeyPatch) -> None:
    # 100 blocks of 4,096 bytes, 40 free, 30 of them for everybody: 60 of 90 are used. 10 inodes, 4 free.
    monkeypatch.setattr(file_system, "ask", lambda *_: Said("100 40 30 4096 10 4\n"))
    filled = FileSystems().filled(Path("/anywhere"))
    assert (filled.used_bytes, filled.limit_bytes) == (60 * 4096, 90 * 4096)
    assert (filled.used_inodes, filled.limit_inodes) == (6, 10)


def test_a_file_system_that_hangs_is_said_by_name_whatever_links_lead_there_and_asked_once(
    hung: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def noted(command: Sequence[str], timeout_s: float) -> Said:
        asked.append(command[-1])
        return ask(command, 0.2 if command[-1] == str(hung / "hung") else 60.0)

    monkeypatch.setattr(file_system, "ask", noted)
    (tmp_path / "scratch").symlink_to(hung / "hung" / "of ann")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "output").symlink_to("../scratch/output")
    (tmp_path / "round").symlink_to("round")
    systems, why = FileSystems(), f"the file system at {hung / 'hung'} does not answer"
    ways = [
        hung / "hung",
        tmp_path / "scratch" / "x",
        tmp_path / "run" / "output",
        tmp_path / "run",
        tmp_path / "round",
    ]
    assert [systems.problem(way) for way in ways] == [why, why, why, "", ""]
    assert sorted(asked) == sorted(set(asked))
