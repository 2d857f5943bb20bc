"""Test which checkpoints are due for an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import now
from opsctl.jobs.evaluation.records import MOST_TRIES, Evaluated, append, choose
from tests.unit.jobs.control.checkpoint_runs import save
from tests.unit.jobs.evaluation.evaluated_runs import a_run, due, paths_of, settings


def put(folder: Path, step: int, *what: str) -> None:
    for one in what:
        of = due(folder, step).of
        append(paths_of(folder), Evaluated(iteration=step, what=one, of=of, at=now()))  # type: ignore[arg-type]


def test_those_that_every_divides_are_due_the_oldest_first_until_they_are_done(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 5, 10, 15, 20, 30)
    table = settings(folder).table
    put(folder, 20, "begun", "done")
    chosen = choose(paths_of(folder), table, None)
    assert ([one.iteration for one in chosen.due], chosen.done) == ([10, 30], ((20, ""),))
    assert [one.iteration for one in choose(paths_of(folder), table, None, again=True).due] == [10, 20, 30]
    save(folder, 20, loss=1.5)
    assert [one.iteration for one in choose(paths_of(folder), table, None).due] == [10, 20, 30]


def test_one_that_failed_too_often_or_is_not_whole_is_left_with_the_reason(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 10, 20, 30)
    put(folder, 10, *["begun", "failed"] * MOST_TRIES)
    (paths_of(folder).checkpoints / "global_step20" / "manifest.json").unlink()
    chosen = choose(paths_of(folder), settings(folder).table, None)
    left = dict(chosen.left)
    assert [one.iteration for one in chosen.due] == [30]
    assert "tried 3 times" in left[10] and "--step 10 tries again" in left[10]
    assert "manifest.json is missing" in left[20]
    assert [one.iteration for one in choose(paths_of(folder), settings(folder).table, 10).due] == [10]


def test_by_hand_any_checkpoint_is_due_and_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 5, more="every = 0")
    table = settings(folder).table
    assert choose(paths_of(folder), table, None).due == ()
    assert [one.iteration for one in choose(paths_of(folder), table, 5).due] == [5]
    with pytest.raises(OpsctlError, match=r"global_step7 cannot be evaluated: .*manifest\.json is missing"):
        choose(paths_of(folder), table, 7)
