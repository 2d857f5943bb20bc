"""Resuming from an earlier checkpoint if the latest is damaged, only with the option, and recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import run_training, write_corpus
from trainer.formats.checkpoint.manifest import read_manifest

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def options(corpus: str, root: Path, **more: Any) -> dict[str, Any]:
    places = {"data_path": [corpus], "save": str(root), "load": str(root)}
    return {**places, "train_iters": 5, "save_interval": 1, "exit_interval": 3, **more}


@pytest.fixture(scope="module")
def saved(pool: Pool, corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints 1, 2 and 3; in 3 a bit is flipped, in 2 a file is short."""
    root = tmp_path_factory.mktemp("saved")
    pool.run(2, run_training, options(corpus, root))
    flipped = root / "global_step3" / "layer_01-model_00-model_states.pt"
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    short = root / "global_step2" / "layer_03-model_00-model_states.pt"
    short.write_bytes(short.read_bytes()[:-1])
    return root


def test_a_damaged_latest_is_refused_by_name_unless_told_to_fall_back_and_then_it_is_on_record(
    pool: Pool, corpus: str, saved: Path, tmp_path: Path
) -> None:
    root = tmp_path / "checkpoints"
    shutil.copytree(saved, root)
    careful = options(corpus, root, exit_interval=5)
    (refused,) = pool.run(1, run_training, careful)
    assert refused.status == 1 and refused.losses == []
    assert f"{root}/global_step3/layer_01-model_00-model_states.pt has checksum " in refused.errors
    assert "opsctl checkpoints repoint --to 1" in refused.errors

    ranks = pool.run(2, run_training, {**careful, "load_fallback": True})
    assert [(rank.status, len(rank.losses)) for rank in ranks] == [(0, 4)] * 2, ranks[0].errors
    (line,) = [one for one in ranks[0].output.splitlines() if one.startswith("--load-fallback: ")]
    assert f"{root}/global_step3/layer_01-model_00-" in line and "global_step1, 2 iterations" in line
    (record,) = [json.loads(one) for one in (root / "rollbacks.jsonl").read_text().splitlines()]
    assert (record["from"], record["to"], record["why"]) == (3, 1, line)
    history = read_manifest(root / "global_step5").history
    changed = {change.name: (change.before, change.now) for change in history[-1].changes}
    assert changed["latest_checkpoint"] == ("global_step3", "global_step1")


def test_nothing_falls_back_past_a_checkpoint_of_another_model(
    pool: Pool, corpus: str, saved: Path, tmp_path: Path
) -> None:
    root = tmp_path / "checkpoints"
    shutil.copytree(saved, root)
    other = options(corpus, root, load_fallback=True, hidden_size=32)
    (refused,) = pool.run(1, run_training, other)
    assert refused.status == 1 and refused.errors.count("\n") == 1
    assert f"{root}/global_step3: hidden_size " in refused.errors and "(16)" in refused.errors
    assert (root / "latest").read_text() == "global_step3" and not (root / "rollbacks.jsonl").exists()
