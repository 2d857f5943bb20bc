"""Modules that ranks compile again after the fork."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import run_training, write_corpus

pytestmark = pytest.mark.distributed

FOREIGN = {"torch", "deepspeed", "sympy"}
PIPELINE = {"pipeline_model_parallel_size": 2, "bf16": True, "hidden_dropout": 0.1}
TENSOR = {"tensor_model_parallel_size": 2, "optimizer": "sgd", "sequence_parallel": True}


@pytest.fixture(scope="module")
def fresh_pool() -> Iterator[Pool]:
    """Ranks of a parent that has imported nothing for other tests."""
    ranks = Pool()
    yield ranks
    ranks.close()


def loaded_in_training(options: dict[str, Any]) -> list[str]:
    before = set(sys.modules)
    seen = run_training(options)
    assert seen.status == 0, seen.output + seen.errors
    return sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in FOREIGN)


@pytest.mark.parametrize("layout", [PIPELINE, TENSOR], ids=["pipeline", "tensor"])
def test_a_training_loads_all_of_torch_and_deepspeed_before_its_ranks_are_forked(
    fresh_pool: Pool, tmp_path: Path, layout: dict[str, Any]
) -> None:
    """From the first step through evaluation and saving, and resuming from there; nothing is recomputed."""
    options = {"data_path": [write_corpus(tmp_path)], "save": str(tmp_path), "load": str(tmp_path), **layout}
    options |= {"train_iters": 2, "exit_interval": 1, "eval_iters": 1, "eval_interval": 1}
    for _ in ("the first step", "the second"):
        assert fresh_pool.run(2, loaded_in_training, options) == [[], []]
