"""A training by the C++ operations is the one that torch makes; a replica alone exchanges no gradients."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.tiny_training import step_items, tiny_engine, train
from tests.native_libraries import built_library
from trainer.core.uncompiled import COMPILER
from trainer.kernels.native.cache import CACHE_VARIABLE

pytestmark = pytest.mark.distributed
RANKS_IMPORT = COMPILER  # recomputation loads it

GATED = {
    **{"position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": True},
    **{"disable_bias_linear": True, "group_query_attention": True, "num_query_groups": 2},
}
BY_TORCH = {"kernels": "torch"}
TRAININGS: list[tuple[int, int, dict[str, Any]]] = [
    (1, 12, {}),
    (1, 6, GATED),
    (1, 5, {"bf16": True}),  # later ones of so small a model are rounding alone, torch's as well
    (2, 4, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
]


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    """Built for the ranks, which load it."""
    built_library("operations")


def by_cpp(function: Callable[..., Any], *args: Any) -> Any:
    """Return the body's result in a rank with C++ kernels for attention, norms and activations only."""
    from trainer.engine import ranks
    from trainer.kernels.choice import Operations
    from trainer.kernels.cpp import CppActivations, CppAttention, CppNorms
    from trainer.kernels.native.libraries import NotBuilt, operations

    found = operations()
    assert not isinstance(found, NotBuilt), found
    chosen = Operations(norms=CppNorms(found), activations=CppActivations(found), attention=CppAttention(found))
    setattr(ranks, "choose", lambda *_: chosen)  # noqa: B010 - in this rank alone
    return function(*args)


@pytest.mark.parametrize(
    ("ranks", "steps", "changes"),
    [
        (1, 20, {"position_embedding_type": "alibi", "embed_layernorm": True, "hidden_dropout": 0.1}),
        (2, 6, {"pipeline_model_parallel_size": 2, "recompute": "block", "eod_mask_loss": True}),
    ],
    ids=str,
)
def test_steps_with_all_that_is_built_are_torchs_within_rounding(
    pool: Pool, ranks: int, steps: int, changes: dict[str, Any]
) -> None:
    ours = pool.run(ranks, train, steps, changes)[0]
    plain = pool.run(ranks, train, steps, {**changes, **BY_TORCH})[0]
    assert ours == [pytest.approx(of_step, rel=2e-5) for of_step in plain]
    assert ours != plain and ours[-1][0] < ours[0][0] - 0.015 * steps


def kernels_of_a_rank(folders: list[str]) -> list[tuple[str, str, str]]:
    """Who computes what in a rank that has its own of these folders for what is built."""
    from trainer.kernels.native import libraries

    os.environ["OPSCTL_KERNELS_CACHE"] = folders[int(os.environ["RANK"])]
    libraries.operations.cache_clear()
    _, parallel, _ = tiny_engine()
    return [(path.family, path.by, path.why) for path in parallel.operations.paths]


def test_ranks_that_would_compute_by_different_kernels_all_take_torch(pool: Pool, tmp_path: Path) -> None:
    built = os.environ[CACHE_VARIABLE]
    both = pool.run(2, kernels_of_a_rank, [built, built])
    assert both[0] == both[1] and {by for _, by, _ in both[0]} == {"C++"}
    apart = pool.run(2, kernels_of_a_rank, [built, str(tmp_path)])
    assert apart[0] == apart[1] and {by for _, by, _ in apart[0]} == {"torch"}
    assert "on rank 1 (" in apart[0][0][2] and "opsctl kernels build" in apart[0][0][2]


@pytest.mark.parametrize(("ranks", "steps", "changes"), TRAININGS, ids=str)
def test_its_steps_are_torchs_within_rounding(pool: Pool, ranks: int, steps: int, changes: dict[str, Any]) -> None:
    plain = pool.run(ranks, train, steps, {**changes, **BY_TORCH})[0]
    fused = pool.run(ranks, by_cpp, train, steps, changes)[0]
    tolerance = 2e-2 if changes.get("bf16") else 2e-5
    assert fused == [pytest.approx(of_step, rel=tolerance) for of_step in plain]
    assert fused[-1][0] < fused[0][0]


def where_gradients_lie() -> list[bool]:
    """Of each parameter, whether the optimizer was given its gradient where backward had put it."""
    from deepspeed.runtime.pipe.schedule import OptimizerStep, ReduceGrads

    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**BY_TORCH)
    before = engine._INSTRUCTION_MAP
    kept: list[bool] = []
    places: dict[int, int] = {}

    def note(own: Any) -> None:
        places.update({id(one): one.grad.data_ptr() for one in own.module.parameters()})
        before[ReduceGrads](own)

    def look(own: Any, lr_kwargs: Any = None) -> None:
        for number, parameters in enumerate(own.optimizer.params_in_partition):
            given = [one.data_ptr() for one in own.optimizer.averaged_gradients[number]][: len(parameters)]
            kept.extend(places[id(one)] == place for one, place in zip(parameters, given, strict=True))
        before[OptimizerStep](own, lr_kwargs)

    engine._INSTRUCTION_MAP = {**before, ReduceGrads: note, OptimizerStep: look}
    train_step(engine, iter(step_items(options, parallel, 0)), options.lr)
    return kept


def test_a_replica_alone_updates_from_the_gradients_where_they_are(pool: Pool) -> None:
    kept = pool.run(1, where_gradients_lie)[0]
    assert kept
    assert all(kept)
