from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.files.state_files import read_state
from opsctl.run.state.background_progress import PROGRESS_VARIABLE, CommandProgress, tell_progress


def test_progress_is_told_where_somebody_listens_and_nothing_else_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PROGRESS_VARIABLE, raising=False)
    tell_progress(3)
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "gone" / "progress.json"))
    tell_progress(3)
    place = tmp_path / "progress.json"
    monkeypatch.setenv(PROGRESS_VARIABLE, str(place))
    tell_progress(0)
    assert not place.exists()
    tell_progress(3)
    tell_progress(4)  # so soon after the first that it is not told
    assert read_state(tmp_path, place, CommandProgress) == CommandProgress(done=3)
