"""The table of parameters: what follows from a shape, and that it follows from nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import from_tables
from trainer.recipe.parameters import Parameter, parameter_table
from trainer.recipe.sizes import parameters

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
        "position_embedding_type": st.sampled_from(["absolute", "rope"]),
        "max_position_embeddings": st.integers(32, 40),
        "embed_layernorm": st.booleans(),
        "normalization": st.sampled_from(["LayerNorm", "RMSNorm"]),
        "disable_bias_linear": st.booleans(),
        "add_qkv_bias": st.booleans(),
        "untie_embeddings_and_output_weights": st.booleans(),
        "glu_activation": st.sampled_from([None, "geglu"]),
        "num_query_groups": st.sampled_from([None, 1, 2]),
        "qk_layernorm": st.booleans(),
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
    # What came later is said only of models that have it: the others are described as they always were.
    later = {"normalization": "RMSNorm", "disable_bias_linear": True, "untie_embeddings_and_output_weights": True}
    assert shape_of(**later).facts() == {**shape_of().facts(), **later}
    modern = {"glu_activation": "swiglu", "num_query_groups": 1, "qk_layernorm": True}
    assert shape_of(**modern).facts() == {**shape_of().facts(), **modern}
    assert shape_of(num_query_groups=2).facts() == shape_of().facts()  # each of its two heads has its own
    rotary = [shape_of(position_embedding_type=name) for name in ("rope", "rotary")]
    assert rotary[0] == rotary[1] and rotary[0].facts()["position_embedding_type"] == "rope"
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
    constants = {one.initial_mean for one in table.values() if one.initial_std == 0}
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
    with pytest.raises(ValueError, match=r"layers\.0\.self_attention\.dense\.weight: 16 .*\bTP 3\b"):
        table[f"{first}.dense.weight"].rank_shape(3)


def test_an_rmsnorm_has_no_bias_anywhere() -> None:
    usual, rms = table_of(embed_layernorm=True), table_of(embed_layernorm=True, normalization="RMSNorm")
    gone = {name for name in usual if "norm" in name and name.endswith("bias")}
    assert usual.keys() - rms.keys() == gone and len(gone) == 2 * 2 + 2
    assert rms == {name: one for name, one in usual.items() if name not in gone}


def test_linear_layers_have_no_biases_where_none_are_wanted_but_those_of_query_key_and_value() -> None:
    usual, none = table_of(), table_of(disable_bias_linear=True)
    gone = {name for name in usual if name.endswith("bias") and "norm" not in name}
    assert usual.keys() - none.keys() == gone and len(gone) == 2 * 4
    kept = table_of(disable_bias_linear=True, add_qkv_bias=True)
    assert kept.keys() - none.keys() == {f"layers.{one}.self_attention.query_key_value.bias" for one in range(2)}
    assert shape_of(add_qkv_bias=True) == shape_of()


def test_shared_keys_and_values_leave_rows_out_and_ranks_share_whole_groups() -> None:
    sizes = {"hidden_size": 32, "num_attention_heads": 8}
    usual, shared = table_of(**sizes), table_of(**sizes, num_query_groups=2)
    name = "layers.0.self_attention.query_key_value.weight"
    # Eight queries, and two keys and two values in the place of eight each, of four rows.
    assert (usual[name].shape, shared[name].shape) == ((24 * 4, 32), ((8 + 2 + 2) * 4, 32))
    assert shared[name].rank_shape(2) == ((4 + 1 + 1) * 4, 32)


def test_a_gate_is_a_layer_of_its_own_beside_what_it_gates() -> None:
    plain, gated = table_of(), table_of(glu_activation="reglu")
    new = gated.keys() - plain.keys()
    assert new == {f"layers.{layer}.mlp.gate.{kind}" for layer in range(2) for kind in ("weight", "bias")}
    for kind in ("weight", "bias"):
        gate, other = (gated[f"layers.1.mlp.{one}.{kind}"] for one in ("gate", "dense_h_to_4h"))
        assert (gate.shape, gate.split_dim, gate.decays) == (other.shape, other.split_dim, other.decays)
        assert gate.rank_shape(2) == other.rank_shape(2) and gate.initial_std == other.initial_std


def test_a_norm_of_queries_and_keys_is_over_one_head_and_every_rank_has_it_whole() -> None:
    new = table_of(qk_layernorm=True, num_query_groups=1).keys() - table_of(num_query_groups=1).keys()
    assert len(new) == 2 * 2 * 2
    for name in new:
        one = table_of(qk_layernorm=True)[name]
        assert one.shape == one.rank_shape(2) == (8,) and not one.decays


def test_an_untied_output_layer_is_a_layer_of_its_own_that_begins_otherwise_than_the_embedding() -> None:
    tied, untied = table_of(), table_of(untie_embeddings_and_output_weights=True)
    (name,) = untied.keys() - tied.keys()
    output, embedding = untied[name], untied["word_embeddings.weight"]
    assert (name, output.name, output.layer) == ("output_layer.weight", "weight", 2 + 5)
    assert (output.shape, output.split_dim, output.token_rows) == (embedding.shape, 0, 61)
    assert output.decays and output.initial_std == embedding.initial_std


def test_padding_is_in_the_word_embedding_alone() -> None:
    assert {name: one.padding_rows for name, one in table_of().items() if one.padding_rows} == {
        "word_embeddings.weight": 3
    }
