"""Messages of a stopping training, on one rank of a real process group of one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.formats.attempt.attempt_records import EXIT_REPORT, LEAVING_NOTE
from trainer.formats.checkpoint.history import Progress
from trainer.formats.logs.guard_lines import Reason
from trainer.loop.leaving import LeavesEarly, Leaving
from trainer.recipe.options import Options

pytestmark = pytest.mark.usefixtures("alone")


def leaving_in(folder: Path, exit_duration_minutes: float | None = None) -> Leaving:
    """Triggers and records of a training, all in `folder`."""
    options = {
        "kill_switch_path": str(folder / "kill-switch"),
        "stop_request_path": str(folder / "stop-request"),
        "exit_report_path": str(folder / EXIT_REPORT),
        "exit_duration_in_mins": exit_duration_minutes,
    }
    return Leaving(Options(options), torch.device("cpu"), 0.0)


def test_word_of_leaving_is_there_before_the_report_and_says_when(tmp_path: Path) -> None:
    leaving = leaving_in(tmp_path)
    leaving.announce(Reason.KILL_SWITCH, 7)
    said = json.loads((tmp_path / LEAVING_NOTE).read_text())
    assert (said["reason"], said["iteration"]) == ("kill-switch", 7)
    assert datetime.fromisoformat(said["at"]).tzinfo is not None
    assert not (tmp_path / EXIT_REPORT).exists()


def test_past_its_exit_duration_it_leaves(tmp_path: Path) -> None:
    found = leaving_in(tmp_path, exit_duration_minutes=90).reason(7, 1)  # since 1970
    assert found is not None and found[0] == Reason.EXIT_DURATION


def test_word_of_leaving_that_cannot_be_written_hurts_nobody(tmp_path: Path) -> None:
    """A folder in its place stands for a full disk: neither takes the file."""
    (tmp_path / LEAVING_NOTE / "in the way").mkdir(parents=True)
    leaving = leaving_in(tmp_path)
    leaving.announce(Reason.KILL_SWITCH, 7)
    leaving.report(Reason.KILL_SWITCH, Progress.none())
    assert json.loads((tmp_path / EXIT_REPORT).read_text())["reason"] == "kill-switch"
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


def make_a_dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def make_a_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("name", ["kill-switch", "stop-request"])
@pytest.mark.parametrize("make", [Path.touch, make_a_dangling_link, make_a_loop, os.mkfifo, Path.mkdir])
def test_whatever_is_in_the_switchs_place_counts_and_nothing_hangs(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    leaving = leaving_in(tmp_path)
    assert leaving.reason(1, 1) is None
    make(tmp_path / name)
    found = leaving.reason(1, 1)
    assert found is not None
    assert found[0] == name


@pytest.mark.parametrize("at", ["the new place", "the old place"])
def test_a_trigger_is_seen_where_the_folder_was_moved_to_and_where_it_was(tmp_path: Path, at: str) -> None:
    old, new = tmp_path / "run", tmp_path / "moved" / "run"
    old.mkdir()
    leaving = leaving_in(old)
    assert leaving.reason(1, 1) is None
    new.parent.mkdir()
    old.rename(new)
    assert leaving.reason(1, 1) is None
    if at == "the old place":
        old.mkdir()
    (new if at == "the new place" else old).joinpath("kill-switch").touch()
    found = leaving.reason(1, 1)
    assert found is not None
    assert f"Detected kill switch at {old}/kill-switch. Exiting" in found[1]
    leaving.announce(Reason.KILL_SWITCH, 1)
    leaving.report(Reason.KILL_SWITCH, Progress.none())
    assert {LEAVING_NOTE, EXIT_REPORT} <= {path.name for path in new.iterdir()}


def test_a_folder_that_comes_later_or_again_is_looked_into(tmp_path: Path) -> None:
    leaving = leaving_in(tmp_path / "run")
    assert leaving.reason(1, 1) is None
    for _ in range(2):
        (tmp_path / "run").mkdir()
        assert leaving.reason(1, 1) is None
        (tmp_path / "run" / "kill-switch").touch()
        assert leaving.reason(1, 1) is not None
        shutil.rmtree(tmp_path / "run")
        assert leaving.reason(1, 1) is None


def test_what_was_agreed_during_an_evaluation_stands(tmp_path: Path) -> None:
    leaving = leaving_in(tmp_path)
    assert not leaving.has_to_end()
    (tmp_path / "kill-switch").touch()
    assert leaving.has_to_end()
    (tmp_path / "kill-switch").unlink()
    found = leaving.reason(1, 1)
    assert found is not None and found[0] == Reason.KILL_SWITCH


def test_what_a_step_has_agreed_on_counts_without_another_look(tmp_path: Path) -> None:
    leaving = leaving_in(tmp_path)
    (tmp_path / "kill-switch").touch()
    seen = leaving.votes()
    (tmp_path / "kill-switch").unlink()
    leaving.counted(seen)
    found = leaving.reason(1, 1)
    assert found is not None and found[0] == Reason.KILL_SWITCH
    assert leaving.reason(1, 1) is None  # a step's votes count once


def test_a_step_in_which_nobody_saw_anything_asks_nobody_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaving = leaving_in(tmp_path)
    leaving.counted(leaving.votes())
    monkeypatch.setattr(torch.distributed, "all_reduce", None)
    assert leaving.reason(1, 1) is None


def test_what_comes_after_a_steps_votes_is_heard_where_something_took_long_since(tmp_path: Path) -> None:
    leaving = leaving_in(tmp_path)
    leaving.counted(leaving.votes())
    (tmp_path / "stop-request").touch()  # while the step's checkpoint is written
    leaving.look_again()
    found = leaving.reason(1, 1)
    assert found is not None and found[0] == Reason.STOP_REQUEST


def test_what_a_step_has_agreed_on_stands_whatever_took_long_since(tmp_path: Path) -> None:
    leaving = leaving_in(tmp_path)
    (tmp_path / "stop-request").touch()
    leaving.counted(leaving.votes())
    (tmp_path / "stop-request").unlink()
    leaving.look_again()
    found = leaving.reason(1, 1)
    assert found is not None and found[0] == Reason.STOP_REQUEST


def test_a_trigger_between_two_parts_of_the_start_leaves(tmp_path: Path) -> None:
    leaving = leaving_in(tmp_path)
    leaving.look_while_building()
    (tmp_path / "stop-request").touch()
    with pytest.raises(LeavesEarly, match="Detected stop request"):
        leaving.look_while_building()


def test_what_every_rank_counts_by_itself_ends_it_at_that_number_and_not_before(tmp_path: Path) -> None:
    """Iterations of this start, whatever the training is at; samples of the whole training."""

    def at(iteration: int, steps_done: int, samples: int, **limits: Any) -> Reason | None:
        options = Options({"exit_report_path": str(tmp_path / "report"), **limits})
        found = Leaving(options, torch.device("cpu"), 0.0).reason(iteration, steps_done, samples)
        return found[0] if found else None

    assert at(103, 3, 800, exit_after_iters=4) is None
    assert at(104, 4, 800, exit_after_iters=4) == Reason.EXIT_INTERVAL
    assert at(100, 0, 800, exit_interval=50) is None
    assert at(100, 1, 800, exit_interval=50) == Reason.EXIT_INTERVAL
    assert at(9, 9, 79, exit_samples=80) is None
    assert at(10, 10, 80, exit_samples=80) == Reason.EXIT_SAMPLES
    assert at(10, 0, 81, exit_samples=80) == Reason.EXIT_SAMPLES
