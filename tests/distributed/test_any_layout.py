"""A checkpoint is loaded into any layout: bitwise the same state, and the training that never moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.layouts import Layout, differences, saved_in_all, trained
from tests.distributed.pool import Pool
from tests.distributed.whole_training import write_corpus

pytestmark = pytest.mark.distributed

# Every way of sharing alone and together with others; `python -m benchmarks.layouts` compares all 400 pairs.
COVERING: list[Layout] = [(1, 1, 1), (2, 2, 2), (4, 1, 1), (1, 2, 2)]
STEPS = 20


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents=200)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_rank_of_each_layout_gets_bitwise_what_its_own_files_have(
    pool: Pool, corpus: str, tmp_path: Path, precision: str
) -> None:
    options: dict[str, Any] = {"bf16": True} if precision == "bf16" else {}
    folders = saved_in_all(pool, tmp_path, corpus, COVERING if precision == "fp32" else COVERING[1:3], **options)
    pairs = [(str(source), str(target)) for source in folders.values() for target in folders.values()]
    assert pool.run(1, differences, pairs)[0] == []


# 4 samples a step until 16 are consumed, then 8: the move after 2 steps falls into the ramp.
RAMPED = {"train_samples": 16 + 8 * (STEPS - 2), "rampup_batch_size": [4, 4, 16], "lr_warmup_samples": 20}
MOVES: list[tuple[Layout, dict[str, Any], Layout, dict[str, Any]]] = [
    ((1, 1, 2), {}, (2, 1, 1), {"micro_batch_size": 2}),
    ((2, 2, 1), {"pp_partition_method": "type:transformer|embedding", "num_layers": 6}, (1, 2, 2), {"num_layers": 6}),
]


@pytest.mark.parametrize(("before", "given_before", "after", "given_after"), MOVES)
def test_a_training_that_moved_to_another_layout_in_the_ramp_is_the_one_that_never_moved(
    pool: Pool,
    corpus: str,
    tmp_path: Path,
    before: Layout,
    given_before: dict[str, Any],
    after: Layout,
    given_after: dict[str, Any],
) -> None:
    options = {"data_path": [corpus], **RAMPED, "save": str(tmp_path), "load": str(tmp_path)}
    stayed = trained(pool, before, {**options, **given_before, "save": None, "load": None})
    trained(pool, before, {**options, **given_before, "exit_interval": 2})
    moved = trained(pool, after, {**options, **given_after})
    assert len(moved[-1].losses) == STEPS
    assert moved[-1].losses == pytest.approx(stayed[-1].losses[2:], rel=1e-6)
    assert moved[-1].batch_sizes == stayed[-1].batch_sizes[2:] and moved[-1].batch_sizes[0] == 4
    assert moved[-1].learning_rates == stayed[-1].learning_rates[2:]
    _, resumed = json.loads((tmp_path / f"global_step{2 + STEPS}" / "manifest.json").read_text())["history"]
    named = {change["name"]: (change["before"], change["now"]) for change in resumed["changes"]}
    assert named["data_parallel_size"] == (before[2], after[2])
