"""Padding rows of the vocabulary change neither loss nor weights, on any rank and in any number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.tiny_training import step_items, tiny_engine
from tests.distributed.whole_training import run_training, write_corpus

pytestmark = pytest.mark.distributed

TOKENS, STEPS = 61, 6


def trained(rows: int, changes: dict[str, Any]) -> tuple[list[float], list[float], float]:
    """(losses, norms of gradients and then of all parameters, largest padding weight) of a short training."""
    from trainer.engine.build import parameters_norm, train_step

    options, parallel, engine = tiny_engine(vocab_size=TOKENS, pad_vocab_size_to=rows, **changes)
    losses, norms, padding = [], [parameters_norm(engine, parallel)], 0.0
    for step in range(STEPS):
        result = train_step(engine, iter(step_items(options, parallel, step)), options.lr)
        losses.append(result.loss)
        norms.append(result.gradient_norm)
    first_padding = max(0, TOKENS - parallel.tensor_rank * rows // parallel.tensor_size)
    for name, parameter in engine.module.named_parameters():
        if name.endswith("word_embeddings.weight") and len(parameter) > first_padding:
            padding = float(parameter[first_padding:].detach().abs().max())
    return losses, [*norms, parameters_norm(engine, parallel)], padding


SPLIT = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}


def test_padding_changes_neither_losses_nor_norms_and_stays_zero(pool: Pool) -> None:
    unpadded = pool.run(1, trained, TOKENS, {"make_vocab_size_divisible_by": 1})[0]
    some = pool.run(1, trained, 80, {})
    most_on_the_second = pool.run(4, trained, 96, SPLIT)
    only_padding_on_the_second = pool.run(4, trained, 160, SPLIT)
    for losses, norms, padding in (*some, *most_on_the_second, *only_padding_on_the_second):
        assert losses == pytest.approx(unpadded[0], rel=1e-6)
        assert norms == pytest.approx(unpadded[1], rel=1e-5)
        assert padding == 0


def test_padding_stays_zero_in_bf16(pool: Pool) -> None:
    assert [padding for _, _, padding in pool.run(2, trained, 96, {"bf16": True})] == [0, 0]


def test_a_token_behind_the_vocabulary_is_refused_by_name_where_there_is_a_row_for_it(
    pool: Pool, tmp_path: Path
) -> None:
    options = {"data_path": [write_corpus(tmp_path)], "train_iters": 1, "vocab_size": 63, "global_batch_size": 256}
    seen = pool.run(1, run_training, options)[0]
    assert seen.status == 2
    assert re.search(r"\btoken id 63, .*\b63\b", seen.errors)
