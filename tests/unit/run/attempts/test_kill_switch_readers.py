"""The live jobs that see a run's kill switch, and their responses."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.run.attempts.events import Attempt, append_closed, append_opened
from opsctl.run.attempts.kill_switch_readers import folder_inode, switch_readers, wait_for_words, word
from opsctl.run.config.paths import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "out")
    paths.output.mkdir()
    return paths


def begin(paths: RunPaths, looks_at: Path | str, *, recorded: bool = True, job_id: int = 12) -> Attempt:
    """Open an attempt as a job does; a release before did not record the folder's inode."""
    inode = folder_inode(Path(looks_at)) if recorded else None
    attempt = Attempt(number=1, id=str(job_id), job_id=job_id, kill_switch_path=str(looks_at), kill_switch_inode=inode)
    append_opened(paths, attempt)
    return attempt


def leave_word(paths: RunPaths, job_id: int, name: str = "leaving.json", **said: object) -> None:
    folder = paths.attempt_folder(job_id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(said))


def sees(paths: RunPaths) -> list[bool]:
    return [reader.sees_it for reader in switch_readers(paths)]


def test_a_job_that_looks_at_the_runs_own_path_sees_it(paths: RunPaths) -> None:
    begin(paths, paths.kill_switch)
    assert sees(paths) == [True]


def test_an_attempt_that_has_ended_looks_no_more(paths: RunPaths) -> None:
    append_closed(paths, Attempt(number=1, id=begin(paths, "/elsewhere/kill-switch").id, job_id=12, reason="finished"))
    assert switch_readers(paths) == []


def test_a_job_that_looks_elsewhere_does_not_see_it(paths: RunPaths, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    begin(paths, tmp_path / "other" / "kill-switch")
    begin(paths, "/nowhere/kill-switch", job_id=13)
    begin(paths, paths.output / "checkpoints" / "latest", job_id=14)
    begin(paths, paths.output / "another name", job_id=15)
    assert sees(paths) == [False] * 4


@pytest.mark.parametrize("recorded", [True, False])
def test_a_job_that_knows_the_folder_by_another_name_sees_it(paths: RunPaths, tmp_path: Path, recorded: bool) -> None:
    (tmp_path / "project").symlink_to(tmp_path)
    begin(paths, tmp_path / "project" / "out" / "kill-switch", recorded=recorded)
    assert sees(paths) == [True]


def test_a_job_whose_folder_was_moved_sees_it_for_it_holds_the_folder(paths: RunPaths, tmp_path: Path) -> None:
    begin(paths, paths.kill_switch)
    paths.output.rename(tmp_path / "moved")
    assert sees(RunPaths(tmp_path / "moved")) == [True]


def test_a_copys_switch_is_not_seen_by_the_originals_job(paths: RunPaths, tmp_path: Path) -> None:
    begin(paths, paths.kill_switch)
    shutil.copytree(paths.output, tmp_path / "copy")
    assert sees(RunPaths(tmp_path / "copy")) == [False]
    shutil.rmtree(paths.output)
    assert sees(RunPaths(tmp_path / "copy")) == [False]


def test_attempts_that_cannot_be_read_are_not_taken_for_none(paths: RunPaths) -> None:
    begin(paths, paths.kill_switch)
    paths.attempts.unlink()
    paths.attempts.mkdir()
    with pytest.raises(OpsctlError, match=r"attempts\.jsonl"):
        switch_readers(paths)


def test_a_job_says_when_it_has_seen_it(paths: RunPaths) -> None:
    attempt = begin(paths, paths.kill_switch)
    assert word(paths, attempt) == ""
    leave_word(paths, 12, reason="kill-switch", iteration=1200)
    seen = word(paths, attempt)
    assert "1200" in seen and "exit-duration" not in seen
    leave_word(paths, 12, reason="exit-duration", iteration=1300)
    left_before = word(paths, attempt)
    assert "1300" in left_before and "exit-duration" in left_before
    leave_word(paths, 12, "exit.json", reason="kill-switch", iteration=1200)
    gone = word(paths, attempt)
    assert "1200" in gone and "kill-switch" in gone and gone != seen


def test_what_a_cut_or_odd_word_says_is_taken_as_far_as_it_goes(paths: RunPaths) -> None:
    attempt = begin(paths, paths.kill_switch)
    leave_word(paths, 12, reason="kill-switch", iteration="many")
    assert word(paths, attempt) and "many" not in word(paths, attempt)
    leave_word(paths, 12, reason="a\x1b[2J")
    assert "\x1b" not in word(paths, attempt)
    (paths.attempt_folder(12) / "leaving.json").write_text('{"reason": "kill-')
    assert word(paths, attempt) == ""


def test_waiting_ends_as_soon_as_all_have_said_something(paths: RunPaths) -> None:
    begin(paths, paths.kill_switch)
    ends = begin(paths, paths.kill_switch, job_id=13)
    live, told = switch_readers(paths), dict[str, str]()
    later = [
        threading.Timer(0.05, leave_word, (paths, 12), {"reason": "kill-switch", "iteration": 7}),
        threading.Timer(0.1, append_closed, (paths, Attempt(number=2, id=ends.id, job_id=13, reason="cancelled"))),
    ]
    for timer in later:
        timer.start()
    silent = wait_for_words(paths, live, 60, lambda reader, said: told.update({reader.job: said}))
    assert silent == [] and set(told) == {"12", "13"} and "7" in told["12"] and "cancelled" in told["13"]


def test_those_that_say_nothing_in_time_are_returned(paths: RunPaths) -> None:
    begin(paths, paths.kill_switch)
    assert [one.job for one in wait_for_words(paths, switch_readers(paths), 0.0, lambda *_: None)] == ["12"]
