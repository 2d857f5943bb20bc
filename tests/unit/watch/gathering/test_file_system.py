from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.watch.gathering import file_system
from opsctl.watch.gathering.file_system import FileSystems
from opsctl.watch.gathering.program import Said


def test_what_only_root_may_use_is_neither_used_nor_free(monkeypatch: pytest.MonkeyPatch) -> None:
    # 100 blocks of 4,096 bytes, 40 free, 30 of them for everybody: 60 of 90 are used. 10 inodes, 4 free.
    monkeypatch.setattr(file_system, "ask", lambda *_: Said("100 40 30 4096 10 4\n"))
    filled = FileSystems().filled(Path("/anywhere"))
    assert (filled.used_bytes, filled.limit_bytes) == (60 * 4096, 90 * 4096)
    assert (filled.used_inodes, filled.limit_inodes) == (6, 10)
