"""The table of parameters: what follows from a shape, and that it follows from nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import from_tables
from trainer.recipe.parameters import Parameter, parameter_table
from trainer.recipe.sizes import parameters
from trainer.recipe.vocabulary import Vocabulary

SMALL = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 32}


def shape_of(**options: Any) -> ModelShape:
    return ModelShape.of(from_tables({**SMALL, **options}), Vocabulary(61, 64))


def table_of(**options: Any) -> dict[str, Parameter]:
    return {one.full_name: one for one in parameter_table(shape_of(**options))}


CHOICES = st.fixed_dictionaries(
    {
        "num_layers": st.integers(1, 4),
        "hidden_size": st.sampled_from([16, 32]),
        "ffn_hidden_size": st.sampled_from([16, 64]),
        "position_embedding_type": st.sampled_from(["absolute", "alibi"]),
        "max_position_embeddings": st.integers(32, 40),
        "embed_layernorm": st.booleans(),
    }
)


@given(CHOICES, CHOICES)
def test_equal_facts_give_equal_tables_and_others_others(one: dict[str, Any], other: dict[str, Any]) -> None:
    shape, second = shape_of(**one), shape_of(**other)
    table = list(parameter_table(shape))
    assert list(parameter_table(ModelShape.of_facts(shape.facts()))) == table
    assert (list(parameter_table(second)) == table) == (second.facts() == shape.facts())
    assert sum(entry.size for entry in table) == parameters(shape)


def test_facts_are_what_manifests_say() -> None:
    assert shape_of(position_embedding_type="alibi").facts() == {
        "num_layers": 2,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "ffn_hidden_size": 64,
        "vocab_size": 61,
        "padded_vocab_size": 64,
        "position_embedding_type": "alibi",
        "max_position_embeddings": None,
        "embed_layernorm": False,
    }
    learned = shape_of().facts()
    assert (learned["position_embedding_type"], learned["max_position_embeddings"]) == ("absolute", 32)


def test_weights_decay_and_biases_and_layernorms_do_not() -> None:
    for name, one in table_of(embed_layernorm=True).items():
        assert one.decays == (name.endswith(".weight") and "norm" not in name), name


def test_what_writes_into_the_residual_stream_begins_smaller() -> None:
    table = table_of(init_method_std=0.5, num_layers=8)
    smaller = {name for name, one in table.items() if one.initial_std == 0.5 / math.sqrt(2 * 8)}
    assert smaller == {
        f"layers.{layer}.{name}.weight" for layer in range(8) for name in ("self_attention.dense", "mlp.dense_4h_to_h")
    }
    constants = {one.initial_mean for name, one in table.items() if one.initial_std == 0}
    assert constants == {0.0, 1.0}
    assert {name for name, one in table.items() if one.initial_mean} == {
        name for name in table if "layernorm.weight" in name
    }


def test_tensor_ranks_share_along_the_split_dimension_alone() -> None:
    table = table_of()
    first = "layers.0.self_attention"
    assert table[f"{first}.query_key_value.weight"].rank_shape(2) == (24, 16)
    assert table[f"{first}.query_key_value.bias"].rank_shape(2) == (24,)
    assert table[f"{first}.dense.weight"].rank_shape(2) == (16, 8)
    assert table[f"{first}.dense.bias"].rank_shape(2) == (16,)
    assert table["word_embeddings.weight"].rank_shape(4) == (16, 16)
    assert table["position_embeddings.weight"].rank_shape(4) == (32, 16)
    with pytest.raises(ValueError, match=r"layers.0.self_attention.dense.weight: 16 is not divisible by TP 3"):
        table[f"{first}.dense.weight"].rank_shape(3)


def test_padding_is_in_the_word_embedding_alone() -> None:
    assert {name: one.padding_rows for name, one in table_of().items() if one.padding_rows} == {
        "word_embeddings.weight": 3
    }
