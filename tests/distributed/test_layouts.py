"""The same training whatever the layout: every split of the work gives the losses of one process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.tiny_training import train

pytestmark = pytest.mark.distributed

STEPS = 20
LAYOUTS = [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 2, 2)]
POSITIONS: dict[str, dict[str, Any]] = {
    "alibi": {"position_embedding_type": "alibi", "embed_layernorm": True},
    "learned": {"position_embedding_type": "absolute"},
}


@pytest.fixture(scope="module")
def one_process(pool: Pool) -> dict[str, list[tuple[float, float]]]:
    return {kind: pool.run(1, train, STEPS, changes)[0] for kind, changes in POSITIONS.items()}


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize(("tensor", "pipeline", "data"), LAYOUTS)
def test_every_layout_has_the_losses_of_one_process(
    pool: Pool, one_process: dict[str, list[tuple[float, float]]], kind: str, tensor: int, pipeline: int, data: int
) -> None:
    layout = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
    ranks = pool.run(tensor * pipeline * data, train, STEPS, POSITIONS[kind] | layout)
    for measured in ranks:
        for step, ((loss, norm), (alone_loss, alone_norm)) in enumerate(zip(measured, one_process[kind], strict=True)):
            assert loss == pytest.approx(alone_loss, rel=1e-6), f"step {step}"
            assert norm == pytest.approx(alone_norm, rel=1e-4), f"step {step}"


def test_the_tiny_training_learns(one_process: dict[str, list[tuple[float, float]]]) -> None:
    for measured in one_process.values():
        assert measured[-1][0] < measured[0][0] - 0.5
