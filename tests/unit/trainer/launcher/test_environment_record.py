from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from opsctl.run.state.attempt_folder import started_with
from trainer.launcher.environment_record import main, start_recording


def test_what_is_recorded_is_what_opsctl_reads_and_tells_this_very_python(tmp_path: Path) -> None:
    usual = os.nice(0)
    pid = os.fork()
    if not pid:
        os._exit(main([str(tmp_path)]))
    assert os.waitpid(pid, 0)[1] == 0 and os.nice(0) == usual
    found = started_with(tmp_path, tmp_path)
    assert found is not None and found.executable == sys.executable
    assert "msgspec" in found.packages and {"opsctl", "trainer"} <= {*found.packages, *found.commits}
    assert [path.name for path in tmp_path.iterdir()] == ["environment.json"]


def test_a_folder_that_takes_nothing_and_a_python_that_is_gone_end_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "nice", lambda _: None)
    assert main([str(tmp_path / "gone")]) == 1
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    start_recording(tmp_path)
