"""The memory of a rank per parameter, if bf16 gradients are accumulated in fp32."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.tiny_training import step_items, tiny_engine

WIDE = {"hidden_size": 128, "bf16": True}  # activations of 16 tokens count for little beside its weights


def bytes_a_parameter_before_the_update(changes: dict[str, Any]) -> tuple[float, int]:
    """In the second step, when moments are there; and the data-parallel size."""
    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**WIDE, **changes)
    count = sum(one.numel() for one in engine.module.parameters())
    train_step(engine, iter(step_items(options, parallel, 0)), options.lr)
    items, seen = iter(step_items(options, parallel, 1)), []

    def weigh() -> tuple[float, ...]:
        seen.append(_alive_bytes() / count)
        until = time.monotonic() + 3.0  # a thread of gloo holds what it has sent for some moments
        while time.monotonic() < until and seen[0] > 1.04 * (6 + 12 / parallel.data_size):
            time.sleep(0.05)
            seen[0] = min(seen[0], _alive_bytes() / count)
        return ()

    train_step(engine, items, options.lr, None, weigh)
    return seen[0], parallel.data_size


def _alive_bytes() -> int:
    """Return the bytes of all storages that Python can reach, each counted once."""
    import torch

    gc.collect()  # what only waits for the collector is not held
    storages = {}
    for one in gc.get_objects():
        if isinstance(one, torch.Tensor):
            for tensor in (one, one.grad if one.is_leaf else None):
                if tensor is not None:
                    storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


@pytest.mark.parametrize("changes", [{}, {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}])
def test_a_bf16_gradient_is_held_once(pool: Pool, changes: dict[str, Any]) -> None:
    for found, data_size in pool.run(2, bytes_a_parameter_before_the_update, changes):
        assert found == pytest.approx(6 + 12 / data_size, rel=0.04)
