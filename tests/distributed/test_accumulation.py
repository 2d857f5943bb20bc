"""Gradients of the output layer that the loss adds to the engine's sums itself, beside those that autograd brings."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.test_gradients import fp16_engine
from tests.distributed.tiny_training import step_items, tiny_engine

pytestmark = pytest.mark.distributed

FP16 = {"fp16": True, "loss_scale": 1024.0, "zero_reduce_bucket_size": 100_000}


def trained(steps: int, by_autograd: bool, changes: dict[str, Any]) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step; with the loss's gradients through autograd, or as trainings have them."""
    from trainer.engine.build import train_step

    options, parallel, engine = (fp16_engine if changes.get("fp16") else tiny_engine)(**changes)
    loss = engine.module.loss_fn
    if by_autograd:
        loss.accumulation = None
    elif parallel.is_last_stage:
        assert loss.accumulation.weight_sum() is not None or not options.accumulate_allreduce_grads_in_fp32
        engine.optimizer.zero_grad()
    measured = []
    for step in range(steps):
        loss.factor = 8.0 if step == 2 else 1.0  # as a drill has it
        result = train_step(engine, iter(step_items(options, parallel, step)), options.lr)
        measured.append((result.loss, result.gradient_norm))
    return measured


BOUNDS = {"fp32": 2e-5, "bf16": 5e-3}


@pytest.mark.parametrize(("precision", "steps"), [("fp32", 15), ("bf16", 10)])
def test_as_many_steps_are_those_of_autograds_gradients(pool: Pool, precision: str, steps: int) -> None:
    changes = {"train_iters": 50, "num_layers": 1, "bf16": precision == "bf16"}
    by_autograd, as_trained = (pool.run(1, trained, steps, one, changes)[0] for one in (True, False))
    for (loss, norm), (other_loss, other_norm) in zip(by_autograd, as_trained, strict=True):
        assert loss == pytest.approx(other_loss, rel=BOUNDS[precision])
        assert norm == pytest.approx(other_norm, rel=20 * BOUNDS[precision])


@pytest.mark.parametrize(
    ("precision", "changes"),
    [
        ("bf16", {"pipeline_model_parallel_size": 2}),
        ("fp32", {"pipeline_model_parallel_size": 2, "untie_embeddings_and_output_weights": True}),
        ("bf16", {"untie_embeddings_and_output_weights": True}),
        ("fp32", {"tensor_model_parallel_size": 2, "sequence_parallel": True, "eod_mask_loss": True}),
    ],
    ids=lambda one: ", ".join(one) if isinstance(one, dict) else one,
)
def test_layouts_train_as_with_autograds_gradients(pool: Pool, precision: str, changes: dict[str, Any]) -> None:
    both = {**changes, "num_layers": 2, "bf16": precision == "bf16"}
    by_autograd, as_trained = (pool.run(2, trained, 4, one, both) for one in (True, False))
    for rank in range(2):
        for before, after in zip(by_autograd[rank], as_trained[rank], strict=True):
            assert before == pytest.approx(after, rel=BOUNDS[precision])


@pytest.mark.parametrize("in_fp32", [True, False])
def test_fp16_trains_as_with_autograds_gradients(pool: Pool, in_fp32: bool) -> None:
    changes = {**FP16, "num_layers": 1, "accumulate_allreduce_grads_in_fp32": in_fp32}
    by_autograd, as_trained = (pool.run(1, trained, 4, one, changes)[0] for one in (True, False))
    for before, after in zip(by_autograd, as_trained, strict=True):
        assert before == pytest.approx(after, rel=2e-3)


def _answered(verdict: Any, _loss: float, _norm: float) -> Any:
    return verdict


def norms_after_what_was_dropped(precision: dict[str, Any]) -> list[tuple[float, float]]:
    """(loss, norm) of one batch: run again after it was dropped, dropped after an evaluation, and again."""
    from trainer.engine.build import evaluate_step, train_step
    from trainer.recipe.spike_guard import Verdict

    options, parallel, engine = tiny_engine(**precision)
    measured = []
    for verdict in (Verdict.RERUN, Verdict.SKIP, Verdict.UPDATE):
        items = step_items(options, parallel, 0)
        result = train_step(engine, iter(items), options.lr, partial(_answered, verdict))
        measured.append((result.loss, result.gradient_norm))
        evaluate_step(engine, iter(items))
    return measured[:3]


@pytest.mark.parametrize("precision", [{}, {"bf16": True}], ids=["fp32", "bf16"])
def test_a_dropped_step_and_an_evaluation_leave_nothing_in_the_sums(pool: Pool, precision: dict[str, Any]) -> None:
    first, again, updated = pool.run(1, norms_after_what_was_dropped, precision)[0]
    assert first == again == updated
