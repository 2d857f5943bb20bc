"""Gradients as the optimizer gets them: summed in fp32, and the same on all ranks that hold a parameter whole.

With Adam's first beta at 0 its first moment is the gradient.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.tiny_training import step_items, tiny_engine, tiny_options

pytestmark = pytest.mark.distributed

UNCLIPPED = {"adam_beta1": 0.0, "clip_grad": 0.0}


def gradients(changes: dict[str, Any]) -> tuple[float, dict[str, Any], set[str]]:
    """(norm, gradient of every parameter of this rank's stage, names of those that tensor ranks share) of one step."""
    from deepspeed.utils import safe_get_full_optimizer_state

    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**UNCLIPPED, **changes)
    norm = train_step(engine, iter(step_items(options, parallel, 0)), options.lr).gradient_norm
    engine.optimizer._hp_optimizer_states_linked = False  # ZeRO links them before there are any
    engine.optimizer._lazy_init_hp_params_optimizer_state()
    named = dict(engine.module.named_parameters())
    found = {name: safe_get_full_optimizer_state(one, "exp_avg").numpy() for name, one in named.items()}
    return norm, found, {name for name, one in named.items() if getattr(one, "tensor_model_parallel", False)}


def test_replicas_add_their_bf16_gradients_up_in_fp32(pool: Pool) -> None:
    norm, alone, _ = pool.run(1, gradients, {"bf16": True})[0]
    split_norm, split, _ = pool.run(4, gradients, {"bf16": True})[0]  # the same four micro-batches, one on each
    assert split_norm == pytest.approx(norm, rel=1e-6)
    for name, gradient in alone.items():
        assert abs(split[name] - gradient).max() <= 1e-6 * abs(gradient).max(), name


@pytest.mark.parametrize("precision", [{}, {"bf16": True}], ids=["fp32", "bf16"])
def test_ranks_that_hold_a_parameter_whole_get_the_same_gradient(pool: Pool, precision: dict[str, Any]) -> None:
    changes = {"position_embedding_type": "absolute", "embed_layernorm": True, "hidden_dropout": 0.1}
    (_, first, shared), (_, second, _) = pool.run(
        2, gradients, {**changes, **precision, "tensor_model_parallel_size": 2}
    )
    replicated = first.keys() - shared
    assert len(replicated) == 3 + 6 * 2 + 2  # embedding, two blocks, final LayerNorm
    for name in replicated:
        assert abs(first[name]).max() > 0
        assert (first[name] == second[name]).all(), name


def fp16_engine(**changes: Any) -> tuple[Any, Any, Any]:
    """(options, parallel, engine) in a rank: fp16 on a CPU, which DeepSpeed and the trainer are told is a GPU."""
    import dataclasses
    import os

    import torch
    from deepspeed.accelerator import get_accelerator

    from trainer.engine.build import Vocabulary, build_engine, initialize

    setattr(type(get_accelerator()), "is_fp16_supported", lambda _self: True)  # noqa: B010 - in this rank alone
    options = tiny_options(int(os.environ["WORLD_SIZE"]), **changes)
    parallel = initialize(options)
    if parallel.device.type == "cpu":
        parallel = dataclasses.replace(parallel, device=torch.device("cuda"))
    return options, parallel, build_engine(options, parallel, Vocabulary.unpadded(options.vocab_size))


def fp16_norms(changes: dict[str, Any]) -> list[float]:
    """Gradient norms of three steps in fp16."""
    from trainer.engine.build import train_step

    half = {"fp16": True, "loss_scale": 1024.0, "zero_reduce_bucket_size": 100_000}
    options, parallel, engine = fp16_engine(**half, **changes)
    return [
        train_step(engine, iter(step_items(options, parallel, step)), options.lr).gradient_norm for step in range(3)
    ]


@pytest.mark.parametrize("in_fp32", [True, False])
def test_fp16_adds_up_the_gradients_of_a_word_embedding_that_two_stages_have(pool: Pool, in_fp32: bool) -> None:
    changes = {"accumulate_allreduce_grads_in_fp32": in_fp32}
    alone = pool.run(1, fp16_norms, changes)[0]
    split = pool.run(2, fp16_norms, {**changes, "pipeline_model_parallel_size": 2})
    assert all(norms == pytest.approx(alone, rel=1e-3) for norms in split)


def test_fp16_with_zero_stage_0_trains_as_with_stage_1(pool: Pool) -> None:
    assert pool.run(2, fp16_norms, {"zero_stage": 0}) == pool.run(2, fp16_norms, {"zero_stage": 1})
