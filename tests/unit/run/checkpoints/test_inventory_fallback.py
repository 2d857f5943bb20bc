"""A damaged latest checkpoint, with an earlier one from which the training can resume."""

from __future__ import annotations

from pathlib import Path

from opsctl.run.checkpoints.inventory import latest_problem
from tests.unit.trainer.formats.checkpoint.test_manifest import damage_the_manifest, three_checkpoints


def test_a_damaged_latest_is_no_problem_for_a_training_that_falls_back(tmp_path: Path) -> None:
    three_checkpoints(tmp_path)
    damage_the_manifest(tmp_path)
    assert "cannot be read" in str(latest_problem(tmp_path))
    assert latest_problem(tmp_path, falls_back=True) is None
