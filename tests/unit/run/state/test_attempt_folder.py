"""Test what an earlier job of the same id left."""

from __future__ import annotations

from pathlib import Path

from opsctl.run.state.attempt_folder import set_aside


def test_what_an_earlier_job_of_the_same_id_left_is_set_aside(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    assert set_aside(folder) is None
    for expected in ("7.1", "7.2"):
        folder.mkdir()
        (folder / "stop-request").touch()
        assert set_aside(folder) == tmp_path / expected
        assert not folder.exists()
    folder.mkdir()
    assert set_aside(folder) is None
