"""The hook of programs that handle no signal: when it answers, and that all ranks get the same answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.run.programs.hook import HOOK_FOLDER, SAVED, STOP_VARIABLE, opsctl_hook


@pytest.fixture
def stop_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STOP_VARIABLE, str(tmp_path / "stop"))
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return tmp_path / "stop"


def test_one_process_stops_once_it_is_asked(stop_file: Path) -> None:
    assert not opsctl_hook.should_stop()
    stop_file.touch()
    assert opsctl_hook.should_stop()
    opsctl_hook.saved()
    assert Path(f"{stop_file}{SAVED}").exists()


def test_a_report_that_cannot_be_written_ends_no_program_and_follows_no_link(stop_file: Path) -> None:
    stop_file.touch()
    mark = Path(f"{stop_file}{SAVED}")
    mark.symlink_to(stop_file.with_name("another's"))
    opsctl_hook.saved()
    assert not stop_file.with_name("another's").exists()
    mark.unlink()
    os.mkfifo(mark)
    opsctl_hook.saved()
    mark.unlink()
    mark.mkdir()
    opsctl_hook.saved()


def test_a_report_of_an_earlier_save_does_not_count_for_a_later_request(stop_file: Path) -> None:
    opsctl_hook.saved()
    assert not Path(f"{stop_file}{SAVED}").exists()


def test_without_opsctl_a_program_never_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STOP_VARIABLE, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert not opsctl_hook.should_stop()
    opsctl_hook.saved()


def test_only_rank_0_looks_and_the_others_get_its_answer(stop_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_file.touch()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    answers: list[bool] = []

    def agree(own: bool) -> bool:
        answers.append(own)
        return True

    assert opsctl_hook.should_stop(agree=agree) and answers == [False]
    opsctl_hook.saved()
    assert not Path(f"{stop_file}{SAVED}").exists()


def test_several_ranks_without_a_way_to_agree_are_refused(stop_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(RuntimeError, match="agree"):
        opsctl_hook.should_stop()


def test_it_needs_only_the_standard_library_and_is_short() -> None:
    code = f"import sys; sys.path.append({str(HOOK_FOLDER)!r}); from opsctl_hook import saved, should_stop"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
    assert len((HOOK_FOLDER / "opsctl_hook.py").read_text().splitlines()) <= 100
