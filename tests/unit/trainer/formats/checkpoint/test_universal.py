"""Tests of universal, which `trainer.formats.checkpoint.exchanged` contains."""

from __future__ import annotations

import re
from typing import Any

import pytest

from trainer.formats.checkpoint.partitions import universal_checkpoint_info

MODEL: dict[str, Any] = {
    "num_layers": 11,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "ffn_hidden_size": 32,
    "vocab_size": 61,
    "padded_vocab_size": 64,
    "position_embedding_type": "absolute",
    "max_position_embeddings": 16,
    "embed_layernorm": True,
}
IN_BLOCKS = {
    "shared by rows": ["self_attention.query_key_value.weight", "mlp.dense_h_to_4h.weight"],
    "shared biases": ["self_attention.query_key_value.bias", "mlp.dense_h_to_4h.bias"],
    "row parallel": ["self_attention.dense.weight", "mlp.dense_4h_to_h.weight"],
    "whole": [
        *(f"{norm}.{part}" for norm in ("input_layernorm", "post_attention_layernorm") for part in ("weight", "bias")),
        *("self_attention.dense.bias", "mlp.dense_4h_to_h.bias"),
    ],
}
EMBEDDING = "tied_modules.embed."


def names_of(kind: str) -> set[str]:
    return {f"{layer}.{name}" for layer in range(3, 14) for name in IN_BLOCKS[kind]}


WHOLE = {
    *names_of("whole"),
    *(f"{EMBEDDING}{name}" for name in ("word_embeddings.norm.weight", "word_embeddings.norm.bias")),
    *(f"{EMBEDDING}position_embeddings.weight", "15.weight", "15.bias"),
}
WORDS = {f"{EMBEDDING}word_embeddings.weight"}
ALL = {*WHOLE, *WORDS, *(name for kind in IN_BLOCKS for name in names_of(kind))}


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("vocabulary_parameter_patterns", WORDS),
        ("pipeline_replicated_parameter_patterns", WORDS),
        ("tp_replicated_parameter_patterns", WHOLE),
        ("parameter_with_row_parallelism_patterns", names_of("row parallel")),
    ],
)
def test_each_list_of_patterns_matches_its_parameters_once_and_no_other(patterns: str, names: set[str]) -> None:
    found = universal_checkpoint_info(MODEL)[patterns]
    matching = {name: [one for one in found if re.match(one, name)] for name in ALL}
    assert {name for name, ones in matching.items() if ones} == names
    assert all(len(ones) <= 1 for ones in matching.values())
    assert {one for ones in matching.values() for one in ones} == set(found)  # DeepSpeed refuses one that is not used


def test_the_sizes_of_the_vocabulary_are_with_and_without_its_padding() -> None:
    found = universal_checkpoint_info(MODEL)
    assert (found["original_vocab_size"], found["padded_vocab_size"]) == (61, 64)
