"""A training whose optimizer is kernels' is the one that torch's makes, whatever precision and layout."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.test_step_numbers import of_the_second_step
from tests.distributed.tiny_training import step_items, tiny_engine, train
from tests.distributed.whole_training import Seen, run_training, write_corpus
from tests.native_libraries import built_library

pytestmark = pytest.mark.distributed

BY_TORCH = {"kernels": "torch"}
STEPS = 8
LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (1, {"clip_grad": 0.0}),
    (1, {"bf16": True, "clip_grad": 0.1}),
    (2, {"pipeline_model_parallel_size": 2}),
]


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    """Built for the ranks, which load it."""
    built_library("operations")


def with_kernels(function: Callable[..., Any], *args: Any) -> Any:
    """Return the body's result in a rank with Adam's kernels and no others."""
    from trainer.engine import ranks
    from trainer.kernels.choice import Operations
    from trainer.kernels.cpp import CppAdam
    from trainer.kernels.native.libraries import NotBuilt, operations

    library = operations()
    assert not isinstance(library, NotBuilt), library
    chosen = Operations(adam=CppAdam(library))
    setattr(ranks, "choose", lambda *_: chosen)  # noqa: B010 - in this rank alone
    return function(*args)


@pytest.mark.parametrize(("ranks", "changes"), LAYOUTS, ids=str)
def test_its_steps_are_those_without_kernels_within_rounding(pool: Pool, ranks: int, changes: dict[str, Any]) -> None:
    plain = pool.run(ranks, train, STEPS, {**changes, **BY_TORCH})[0]
    fused = pool.run(ranks, with_kernels, train, STEPS, changes)[0]
    tolerance = 2e-2 if changes.get("bf16") else 2e-5
    steps = 5 if changes.get("bf16") else STEPS  # later norms of so small a model in bf16 are rounding alone
    assert fused[:steps] == [pytest.approx(of_step, rel=tolerance) for of_step in plain[:steps]]
    assert [loss for loss, _ in fused] == pytest.approx([loss for loss, _ in plain], rel=tolerance)
    assert fused[-1][0] < fused[0][0]


def weights_after_a_step(changes: dict[str, Any]) -> list[float]:
    """All weights, in order, of this rank; fp32 ones where there are such."""
    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**changes)
    train_step(engine, iter(step_items(options, parallel, 0)), options.lr)
    flat = [group["params"][0] for group in engine.optimizer.optimizer.param_groups]
    model = [one for parameter in engine.module.parameters() for one in parameter.detach().float().flatten().tolist()]
    return [*model, *(one for part in flat for one in part.tolist())]


@pytest.mark.parametrize("changes", [{}, {"bf16": True}], ids=str)
def test_a_step_leaves_the_weights_that_deepspeed_leaves(pool: Pool, changes: dict[str, Any]) -> None:
    """In each rank's model and in its part of the fp32 weights; so clipping is in what Adam reads, once."""
    clipped = {**changes, "clip_grad": 0.05, "adam_eps": 1e-3}  # a step as long as its gradient, or nearly
    plain = pool.run(2, weights_after_a_step, {**clipped, **BY_TORCH})
    fused = pool.run(2, with_kernels, weights_after_a_step, clipped)
    for one, other in zip(plain, fused, strict=True):
        assert other == pytest.approx(one, rel=2**-7 if changes else 1e-6, abs=1e-7)


def skipped_and_trained(changes: dict[str, Any]) -> list[Any]:
    """Take a step with gradients that are not numbers, and another; return the changes and messages."""
    import torch

    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**changes)
    parameters = list(engine.module.parameters())

    def step(number: int, poisoned: bool) -> list[Any]:
        before = [one.detach().clone() for one in parameters]
        hook = parameters[-1].register_hook(lambda gradient: gradient * math.nan if poisoned else gradient)
        result = train_step(engine, iter(step_items(options, parallel, number)), options.lr)
        hook.remove()
        same = all(torch.equal(one, other) for one, other in zip(before, parameters, strict=True))
        return [result.skipped, same, math.isfinite(result.gradient_norm)]

    return [step(0, poisoned=False), step(1, poisoned=True), step(2, poisoned=False)]


@pytest.mark.parametrize("changes", [{}, {"bf16": True}], ids=str)
def test_an_update_of_no_numbers_is_dropped_and_the_next_one_made(pool: Pool, changes: dict[str, Any]) -> None:
    usual, dropped = [False, False, True], [True, True, False]
    plain = pool.run(1, skipped_and_trained, {**changes, **BY_TORCH})[0]
    assert pool.run(1, with_kernels, skipped_and_trained, changes)[0] == plain == [usual, dropped, usual]


@pytest.mark.parametrize("changes", [{}, {"bf16": True}], ids=str)
def test_a_step_reads_its_numbers_once(pool: Pool, changes: dict[str, Any]) -> None:
    assert pool.run(2, with_kernels, of_the_second_step, changes) == [{"small": 1, "read": 1}] * 2


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def losses(ranks: list[Seen]) -> list[float]:
    assert [rank.status for rank in ranks] == [0] * len(ranks), [rank.errors for rank in ranks]
    return ranks[-1].losses


@pytest.mark.parametrize("changes", [pytest.param({}, marks=pytest.mark.nightly), {"bf16": True}], ids=str)
def test_a_training_goes_on_with_and_without_kernels(
    pool: Pool, corpus: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """With them from start to end bit for bit, from one way to the other within rounding."""
    base = {**changes, "data_path": [corpus], "micro_batch_size": 4, "train_samples": 48}
    fused = losses(pool.run(1, with_kernels, run_training, base))

    def part(by_kernels: bool, options: dict[str, Any]) -> list[float]:
        if by_kernels:
            return losses(pool.run(1, with_kernels, run_training, options))
        return losses(pool.run(1, run_training, {**options, **BY_TORCH}))

    def in_two(first: bool, second: bool) -> list[float]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        stored = {**base, "save": str(folder), "load": str(folder)}
        begun = part(first, {**stored, "exit_interval": 3})
        manifest = json.loads((folder / "global_step3" / "manifest.json").read_text())
        assert manifest["consumed_train_samples"] == 24
        return begun + part(second, stored)

    assert in_two(True, True) == fused
    tolerance = 2e-2 if changes.get("bf16") else 2e-5
    assert in_two(True, False) == pytest.approx(fused, rel=tolerance)
    assert in_two(False, True) == pytest.approx(fused, rel=tolerance)
