"""A real training's checkpoints and curves: saved by phases, shown, verified, gone back from, and brought back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opsctl.jobs.control.rollback import rollback, undo
from opsctl.run.checkpoints.contents import shown
from opsctl.run.config.paths import RunPaths
from tests.distributed.pool import Pool
from tests.distributed.test_asked_saves import saves
from tests.distributed.whole_training import Seen, run_training, write_corpus
from tests.unit.jobs.control.test_rollback import contents, curve, read_curves
from trainer.convert.verification import verify
from trainer.formats.checkpoint.manifest import read_manifest, tag_of

pytestmark = pytest.mark.distributed


def test_a_training_goes_back_as_if_it_had_never_gone_further(pool: Pool, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "output")
    paths.output.mkdir(mode=0o700)
    options: dict[str, Any] = {
        **{"data_path": [write_corpus(tmp_path)], "train_iters": 8, "tensorboard_dir": str(paths.tensorboard)},
        **{"save": str(paths.checkpoints), "load": str(paths.checkpoints)},
        **{"save_schedule": ["1:2", "4"], "save_iterations": [5]},
    }

    def train() -> Seen:
        seen: list[Seen] = pool.run(1, run_training, options)
        assert seen[0].status == 0, seen[0].errors
        return seen[0]

    first = train()
    assert saves(first) == [1, 2, 4, 5, 8]
    folders = [paths.checkpoints / tag_of(step) for step in (1, 2, 4, 5, 8)]
    assert [read_manifest(folder).pinned for folder in folders] == [False, False, False, True, False]
    assert [one.problems for one in verify(folders, 2)] == [[] for _ in folders]
    told = shown(folders[2])
    assert told.loss == first.losses[3] and told.parameters and told.saved_by and told.training and told.settings
    assert [(one.kind, one.iteration) for one in told.history] == [("began", 0)]
    points, before = curve(tmp_path), contents(tmp_path)

    assert rollback(paths, "tiny", 4, "", read_curves).checkpoints == (5, 8)
    assert curve(tmp_path) == points[:4]
    second = train()
    assert saves(second) == [5, 8] and second.losses == first.losses[4:]
    assert curve(tmp_path) == points
    assert [one.kind for one in shown(folders[4]).history] == ["began", "resumed"]

    assert rollback(paths, "tiny", 4, "", read_curves).number == 2
    undo(paths, "tiny", 1, read_curves)
    assert contents(tmp_path) == before
