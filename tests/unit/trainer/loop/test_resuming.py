"""The progress of a training that stops before it has loaded its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.checkpoint.small_checkpoint import publish_small
from trainer.formats.checkpoint.partitions import Cut
from trainer.loop.resuming import progress_on_disk
from trainer.recipe.options import Options


@pytest.mark.parametrize(
    ("given", "iteration"),
    [({}, 9), ({"load_step": 5}, 5), ({"finetune": True}, 0), ({"load_step": 6}, 0), ({"load": None}, 0)],
)
def test_a_training_that_leaves_before_it_loads_is_where_it_would_have_begun(
    tmp_path: Path, given: dict[str, Any], iteration: int
) -> None:
    for saved in (5, 9):
        folder = tmp_path / f"global_step{saved}"
        folder.mkdir()
        publish_small(folder, Cut(1, 1, 1, "type:transformer"), iteration=saved)
    (tmp_path / "latest").write_text("global_step9")
    options = Options({"load": str(tmp_path), "save": None, "finetune": False, "load_step": None, **given})
    assert progress_on_disk(options).iteration == iteration
