"""Sequence parallelism: the same training as without, of which each rank keeps its slice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.modern import WITH_NORMS
from tests.distributed.pool import Pool
from tests.distributed.test_gradients import gradients
from tests.distributed.tiny_training import step_items, tiny_engine, tiny_options, train
from trainer.core.uncompiled import COMPILER
from trainer.recipe.activations import MicroBatch
from trainer.recipe.layout import splits_sequence
from trainer.recipe.model_options import RECOMPUTE, Vocabulary, recomputed
from trainer.recipe.model_shape import ModelShape

pytestmark = pytest.mark.distributed
RANKS_IMPORT = COMPILER  # recomputation loads it

STEPS = 4
BY_TORCH = {"kernels": "torch"}  # of which the plan speaks: kernels keep less
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
KINDS: dict[str, dict[str, Any]] = {
    "learned": {"position_embedding_type": "absolute", "embed_layernorm": True, "eod_mask_loss": True, **DROPOUT},
    "alibi": {
        "position_embedding_type": "alibi",
        "apply_residual_connection_post_layernorm": True,
        "hidden_dropout": 0.1,
    },
    "modern": {**WITH_NORMS, **DROPOUT},
}
SPLIT = {"tensor_model_parallel_size": 2, "sequence_parallel": True}


@pytest.fixture(scope="module")
def one_process(pool: Pool) -> dict[str, list[tuple[float, float]]]:
    return {kind: pool.run(1, train, STEPS, changes)[0] for kind, changes in KINDS.items()}


@pytest.mark.parametrize(
    ("kind", "ranks", "layout"),
    [
        ("learned", 2, {}),
        ("learned", 4, {"tensor_model_parallel_size": 4, "recompute": "attention", "micro_batch_size": 4}),
        ("learned", 4, {"pipeline_model_parallel_size": 2, "recompute": "block", "micro_batch_size": 1}),
        ("alibi", 4, {"pipeline_model_parallel_size": 2, "recompute": "attention"}),
        ("modern", 4, {"recompute": "block", "micro_batch_size": 1}),
    ],
    ids=str,
)
def test_ranks_that_split_the_sequence_have_the_losses_of_one_process(
    pool: Pool, one_process: dict[str, list[tuple[float, float]]], kind: str, ranks: int, layout: dict[str, Any]
) -> None:
    for measured in pool.run(ranks, train, STEPS, {**KINDS[kind], **SPLIT, **layout}):
        for step, ((loss, norm), (alone_loss, alone_norm)) in enumerate(zip(measured, one_process[kind], strict=True)):
            assert loss == pytest.approx(alone_loss, rel=1e-6), f"step {step}"
            assert norm == pytest.approx(alone_norm, rel=1e-5), f"step {step}"


@pytest.mark.parametrize("kind", ["learned", "modern"])
def test_every_gradient_is_the_one_of_whole_sequences_on_every_rank(pool: Pool, kind: str) -> None:
    changes = {**KINDS[kind], "tensor_model_parallel_size": 2}
    whole = pool.run(2, gradients, changes)
    split = pool.run(2, gradients, {**changes, "sequence_parallel": True})
    for (_, wanted, _), (_, got, _) in zip(whole, split, strict=True):
        assert wanted.keys() == got.keys()
        for name, gradient in wanted.items():
            assert abs(got[name] - gradient).max() <= 2e-6 * abs(gradient).max(), name
    (_, first, shared), (_, second, _) = split
    replicated = first.keys() - shared
    assert replicated
    for name in replicated:
        assert (first[name] == second[name]).all(), name


def evaluated(changes: dict[str, Any]) -> float:
    """Return the loss of one global batch that is not trained on, after a step."""
    from trainer.engine.build import evaluate_step, train_step

    options, parallel, engine = tiny_engine(**changes)
    train_step(engine, iter(step_items(options, parallel, 0)), options.lr)
    return evaluate_step(engine, iter(step_items(options, parallel, 1, training=False)))


def test_an_evaluation_of_slices_has_the_same_loss(pool: Pool) -> None:
    alone = pool.run(1, evaluated, KINDS["learned"])[0]
    assert pool.run(2, evaluated, {**KINDS["learned"], **SPLIT}) == pytest.approx([alone] * 2, rel=1e-6)


def test_bf16_trains_with_slices_as_without_and_the_same_again(pool: Pool) -> None:
    changes = {**KINDS["learned"], "bf16": True, "tensor_model_parallel_size": 2}
    whole = [loss for loss, _ in pool.run(2, train, STEPS, changes)[0]]
    split = pool.run(2, train, STEPS, {**changes, "sequence_parallel": True})
    assert [loss for loss, _ in split[0]] == pytest.approx(whole, rel=1e-3)
    assert pool.run(2, train, STEPS, {**changes, "sequence_parallel": True, "recompute": "block"}) == split


def bytes_kept_of_a_block(variants: list[dict[str, Any]]) -> list[int]:
    """Return autograd's saved tensors of one block's forward pass, without weights, for each option."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    found = []
    for changes in variants:
        options, parallel, engine = tiny_engine(**changes)
        block = next(layer for layer in engine.module.forward_funcs if type(layer).__name__ == "TransformerBlock")
        length = options.seq_length // parallel.sequence_part[1]
        x = torch.zeros(options.micro_batch_size, length, options.hidden_size, requires_grad=True)
        weights = {one.untyped_storage().data_ptr() for one in engine.module.parameters()}
        kept: dict[int, torch.Tensor] = {}

        def keep(saved: torch.Tensor, kept: dict[int, torch.Tensor] = kept) -> torch.Tensor:
            kept[saved.untyped_storage().data_ptr()] = saved  # held, so that no other can get its place
            return saved

        with saved_tensors_hooks(keep, lambda saved: saved):
            out = engine.module._checkpointed(block, x) if options.recompute == "block" else block(x)
        assert out.requires_grad
        found.append(sum(one.untyped_storage().nbytes() for at, one in kept.items() if at not in weights))
    return found


def test_a_rank_keeps_what_the_paper_says_of_recomputed_attention_and_split_sequences(pool: Pool) -> None:
    """Korthikanti et al., arXiv 2205.05198, with 4 bytes a number where they have 2: b s h (34 / t) are (66 / t)."""
    whole = {
        "position_embedding_type": "absolute",
        **DROPOUT,
        "tensor_model_parallel_size": 2,
        "recompute": "attention",
        **BY_TORCH,
    }
    variants = [whole, {**whole, **SPLIT}, {**whole, "recompute": "block"}, {**whole, **SPLIT, "recompute": "block"}]
    tokens, numbers = 2 * 16, 2 * 16 * 32
    statistics = (
        tokens * 2 * 2 * 4
    )  # a mean and a deviation of each token in two norms, of which the paper does not speak
    kept = [
        numbers * (4 * 4 + 2) + numbers * 12 * 4 // 2 + statistics,  # 10 and 24 / t of the paper
        numbers * (16 * 4 + 2) // 2 + statistics // 2,
        numbers * 4,
        numbers * 4 // 2,
    ]
    assert pool.run(2, bytes_kept_of_a_block, variants) == [kept, kept]


@pytest.mark.parametrize(
    "model", [KINDS["alibi"], {**KINDS["modern"], "num_attention_heads": 8, "num_query_groups": 4}], ids=str
)
def test_a_rank_keeps_what_is_planned_of_split_sequences(pool: Pool, model: dict[str, Any]) -> None:
    variants = [
        {
            **model,
            **BY_TORCH,
            "tensor_model_parallel_size": 2,
            "sequence_parallel": split,
            "recompute": recompute,
        }
        for split in (False, True)
        for recompute in RECOMPUTE
    ]
    planned = [planned_bytes_of_a_block(changes) for changes in variants]
    assert pool.run(2, bytes_kept_of_a_block, variants) == [planned, planned]


def planned_bytes_of_a_block(changes: dict[str, Any]) -> int:
    options = tiny_options(2, **changes)
    return MicroBatch(
        ModelShape.of(options, Vocabulary.of(options.vocab_size, options)),
        options.micro_batch_size,
        options.seq_length,
        options.tensor_model_parallel_size,
        recomputed(options),
        splits_sequence(options),
        on_cpu=True,
    ).block_bytes()
