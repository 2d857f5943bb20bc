"""Test what is gathered of checkpoints' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.monitoring.gather import records
from opsctl.monitoring.runner import gather
from opsctl.monitoring.snapshot import FaultyCheckpoint, Part
from opsctl.run.state.run_view import RunView, view
from tests.tiny_run import write_checkpoint, write_run
from tests.unit.monitoring.run_folder import slurm


@pytest.fixture
def run(tmp_path: Path) -> RunView:
    """A run with five whole checkpoints."""
    found = view(str(write_run(tmp_path)))
    for iteration in (10, 20, 30, 40, 50):
        write_checkpoint(tmp_path, iteration, 8 * iteration)
    return found


def faulty(run: RunView) -> list[FaultyCheckpoint]:
    return list(gather(run, slurm([]), Part.FILES).faulty)


def spoil(run: RunView, iteration: int) -> None:
    (run.paths.checkpoints / f"global_step{iteration}" / "manifest.json").unlink()


def test_whole_checkpoints_are_no_news(run: RunView) -> None:
    assert faulty(run) == []


def test_an_incomplete_new_checkpoint_is_named_and_an_old_one_is_not_checked(run: RunView) -> None:
    spoil(run, 30)
    spoil(run, 10)
    (one,) = faulty(run)
    assert (one.name, one.is_latest, one.is_leftover) == ("global_step30", False, False)
    assert "manifest.json" in one.fault and one.changed_at is not None


def test_the_latest_is_looked_at_first_however_old_it_is(run: RunView, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.paths.checkpoints / "latest").write_text("global_step10")
    spoil(run, 10)
    spoil(run, 50)
    assert [(one.name, one.is_latest) for one in faulty(run)] == [("global_step10", True), ("global_step50", False)]
    monkeypatch.setattr(records, "BUDGET_S", 0.0)
    assert [one.name for one in faulty(run)] == ["global_step10"]


def test_what_an_unfinished_save_has_left_is_told_apart(run: RunView) -> None:
    (run.paths.checkpoints / ".tmp-global_step60.abc").mkdir()
    (one,) = faulty(run)
    assert (one.name, one.is_leftover, one.is_latest) == (".tmp-global_step60.abc", True, False)


def test_checkpoints_that_cannot_be_listed_are_a_part_that_is_blind(run: RunView) -> None:
    run.paths.checkpoints.rename(run.paths.output / "moved")
    run.paths.checkpoints.write_text("no folder")
    seen = gather(run, slurm([]), Part.FILES | Part.KILL_SWITCH)
    assert "Not a directory" in seen.problem_of(Part.FILES) and seen.kill_switch is not None


def test_a_run_without_checkpoints_has_none_that_is_wrong(tmp_path: Path) -> None:
    assert faulty(view(str(write_run(tmp_path)))) == []
