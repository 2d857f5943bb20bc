"""When tensor-parallel ranks split the sequence, and what does not go with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.facts import missing
from trainer.recipe.layout import splits_sequence
from trainer.recipe.options import OptionsError, parse, to_arguments

TRAINING: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 32,
    "num_attention_heads": 8,
    "seq_length": 30,
    "micro_batch_size": 1,
    "lr": 1e-3,
    "train_iters": 10,
    "vocab_size": 64,
    "make_vocab_size_divisible_by": 4,
    "sequence_parallel": True,
}


def test_a_rank_alone_has_nobody_to_split_with_and_is_told() -> None:
    options = parse(to_arguments(TRAINING), 4)
    assert not splits_sequence(options)
    (notice,) = options.notices
    assert not missing(notice, "--sequence-parallel", "--tensor-model-parallel-size 1")


def test_ranks_that_share_blocks_split_it() -> None:
    options = parse(to_arguments({**TRAINING, "tensor_model_parallel_size": 2}), 4)
    assert splits_sequence(options)
    assert options.notices == ()


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"tensor_model_parallel_size": 4}, r"--seq-length 30\b.*--tensor-model-parallel-size 4\b"),
        (
            {"tensor_model_parallel_size": 2, "recompute": "block", "partition_activations": True},
            "--partition-activations.*--sequence-parallel",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_split_is_refused_by_name(changes: dict[str, Any], facts: str) -> None:
    with pytest.raises(OptionsError, match=facts):
        parse(to_arguments({**TRAINING, **changes}), 4)


def test_a_length_that_nobody_splits_may_be_any() -> None:
    parse(to_arguments({**TRAINING, "tensor_model_parallel_size": 4, "sequence_parallel": False}), 4)
