"""The collectives of a step, and the numbers of the device that the host reads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.tiny_training import step_items, tiny_engine
from trainer.core.uncompiled import COMPILER

RANKS_IMPORT = COMPILER  # recomputation loads it

DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
CONVERSIONS = ("__int__", "__float__", "__bool__")
LAYOUTS = [
    {"tensor_model_parallel_size": 2},
    {"pipeline_model_parallel_size": 2},
    {},
    {"bf16": True},
    {"bf16": True, "tensor_model_parallel_size": 2},
    {"bf16": True, "pipeline_model_parallel_size": 2},
    {**DROPOUT, "pipeline_model_parallel_size": 2},
    {**DROPOUT, "checkpoint_activations": True},
]


def of_the_second_step(changes: dict[str, Any]) -> dict[str, int]:
    """Return the small collectives by kind, and the numbers of them that the host has read."""
    import torch

    from trainer.engine.build import train_step

    dist: Any = torch.distributed
    options, parallel, engine = tiny_engine(**changes)
    votes = (0.0,) * 6
    train_step(engine, iter(step_items(options, parallel, 0)), options.lr, None, lambda: votes)
    counted = {"small": 0, "read": 0}

    def counts_small(name: str) -> None:
        real = getattr(dist, name)

        def counting(*args: Any, **keywords: Any) -> Any:
            tensor = args[0] if args else keywords["tensor"]
            counted["small"] += tensor.numel() < 16 if torch.is_tensor(tensor) else 1
            return real(*args, **keywords)

        setattr(dist, name, counting)

    def counts_reads(tensor_class: Any, name: str) -> None:
        real = getattr(tensor_class, name)

        def counting(tensor: Any, *args: Any) -> Any:
            # Of no dimension are the norm, which is on the host, and the largest token, read on a CPU alone.
            counted["read"] += tensor.ndim > 0 or name not in CONVERSIONS
            return real(tensor, *args)

        setattr(tensor_class, name, counting)

    for name in ("all_reduce", "broadcast", "all_gather", "all_gather_object", "broadcast_object_list"):
        counts_small(name)
    items = iter(step_items(options, parallel, 1))
    tensor_class: Any = torch.Tensor
    for name in ("tolist", "item", "cpu", *CONVERSIONS):
        counts_reads(tensor_class, name)
    train_step(engine, items, options.lr, None, lambda: votes, options.global_batch_size)
    return counted


@pytest.mark.parametrize("changes", LAYOUTS)
def test_a_step_has_one_small_collective_and_reads_its_numbers_once(pool: Pool, changes: dict[str, Any]) -> None:
    assert pool.run(2, of_the_second_step, changes) == [{"small": 1, "read": 1}] * 2


def losses(changes: dict[str, Any], says_where: bool) -> list[float]:
    """Of three steps; the host says where in the training their samples lie, or the micro-batches alone do."""
    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**changes)
    found = []
    for step in range(3):
        items = iter(step_items(options, parallel, step))
        consumed = step * options.global_batch_size if says_where else None
        found.append(train_step(engine, items, options.lr, consumed_samples=consumed).loss)
    return found


@pytest.mark.parametrize("stages", [1, 2])
def test_the_host_counts_the_samples_as_the_micro_batches_say(pool: Pool, stages: int) -> None:
    """Two replicas of two micro-batches each, or two stages of four."""
    layout = {**DROPOUT, "pipeline_model_parallel_size": stages, "checkpoint_activations": True}
    assert pool.run(2, losses, layout, True) == pool.run(2, losses, layout, False)
