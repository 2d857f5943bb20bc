"""The same training whatever the layout and the micro-batch: every split of the work gives one process's losses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.modern import WITH_NORMS
from tests.distributed.pool import Pool
from tests.distributed.tiny_training import train

pytestmark = pytest.mark.distributed

STEPS, LEARNT_AFTER = 6, 20
#: TP, PP, DP, micro-batch; one process takes two samples at a time.
Layout = tuple[int, int, int, int]
LAYOUTS: list[Layout] = [(1, 1, 1, 4), (2, 1, 1, 2), (1, 2, 1, 1), (1, 1, 2, 4), (2, 2, 1, 2), (2, 2, 2, 1)]
#: With 61 tokens, TP 1 has 63 rows of them and TP 2 84.
PADDED = {"vocab_size": 61, "make_vocab_size_divisible_by": 21}
FOUR = {"num_layers": 4}  # two of them on a stage
KINDS: dict[str, dict[str, Any]] = {
    "alibi": {**FOUR, "position_embedding_type": "alibi", "embed_layernorm": True, "hidden_dropout": 0.1, **PADDED},
    "modern": {**FOUR, **WITH_NORMS, "hidden_dropout": 0.1, **PADDED},
    "learned": {**FOUR, "hidden_dropout": 0.1, "attention_dropout": 0.1, "eod_mask_loss": True},
}


@pytest.fixture(scope="module")
def one_process(pool: Pool) -> dict[str, list[tuple[float, float]]]:
    return {kind: pool.run(1, train, LEARNT_AFTER, changes)[0] for kind, changes in KINDS.items()}


#: Each layout with one kind at least, and each kind with every direction; `make nightly` tries all pairs.
IN_THE_GATE: dict[str, list[Layout]] = {
    "alibi": [(1, 1, 1, 4), (2, 1, 1, 2), (2, 2, 2, 1)],
    "modern": [(2, 1, 1, 2), (1, 2, 1, 1)],
    "learned": [(1, 1, 2, 4), (2, 2, 1, 2)],
}
PAIRS = [
    pytest.param(kind, layout, marks=[] if layout in IN_THE_GATE[kind] else pytest.mark.nightly)
    for kind in KINDS
    for layout in LAYOUTS
]


@pytest.mark.parametrize(("kind", "layout"), PAIRS, ids=str)
def test_every_layout_has_the_losses_of_one_process(
    pool: Pool, one_process: dict[str, list[tuple[float, float]]], kind: str, layout: Layout
) -> None:
    tensor, pipeline, data, micro_batch = layout
    split = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
    changes = KINDS[kind] | split | {"micro_batch_size": micro_batch}
    ranks = pool.run(tensor * pipeline * data, train, STEPS, changes)
    for measured in ranks:
        for step, ((loss, norm), (alone_loss, alone_norm)) in enumerate(
            zip(measured, one_process[kind][:STEPS], strict=True)
        ):
            assert loss == pytest.approx(alone_loss, rel=1e-6), f"step {step}"
            assert norm == pytest.approx(alone_norm, rel=1e-5), f"step {step}"


def test_the_tiny_training_learns(one_process: dict[str, list[tuple[float, float]]]) -> None:
    for measured in one_process.values():
        assert measured[-1][0] < measured[0][0] - 0.5
