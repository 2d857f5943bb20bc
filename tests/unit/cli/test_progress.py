from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.cli.progress import now_and_then, of_bytes, of_folder
from opsctl.run.state.background_progress import PROGRESS_VARIABLE
from trainer.formats.tolerant import decode


def test_what_is_quick_says_nothing_and_what_takes_hours_a_line_each_half_a_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = iter([0.0, 1.9, 2.0, 2.1, 5.9, 6.0, 14.0, 29.9, 30.0, 59.9, 60.0, 89.9, 90.0])
    say = now_and_then(str, lambda: next(seconds))
    for number in range(12):
        say(number)
    assert capsys.readouterr().err.split() == ["1", "4", "5", "7", "9", "11"]


def test_a_folder_may_be_called_anything(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("opsctl.cli.progress._FIRST_S", 0.0)
    seconds = iter([0.0, 0.0, 2.0, 2.0])
    of_folder(Path("/data/{0}{x}"), "looked at", lambda: next(seconds))(1234)
    assert "/data/{0}{x}: 1,234 looked at, 617 a second" in capsys.readouterr().err


def test_bytes_are_told_to_people_and_to_the_job_that_carries_the_command_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("opsctl.cli.progress._FIRST_S", 0.0)
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "progress.json"))
    seconds = iter([0.0, 0.0, 10.0, 10.0, 20.0, 20.0])
    tell = of_bytes(3 * 10**9, lambda: next(seconds))
    tell(1_070_000_000)
    assert capsys.readouterr().err.strip() == "1.07 GB of 3 GB, 107 MB/s, 0:00:18 left"
    assert decode((tmp_path / "progress.json").read_bytes(), dict[str, object]) == {"done": 1_070_000_000}
