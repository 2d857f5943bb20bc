from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from trainer.convert.hf.families import FAMILIES, Heads, family_of, their_shapes, to_ours, to_theirs
from trainer.formats.errors import CheckpointError
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import from_tables
from trainer.recipe.parameters import parameter_table

SIZES = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 8}
LLAMA = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "disable_bias_linear": True,
    "glu_activation": "swiglu",
}
BLOOM = {"position_embedding_type": "alibi", "embed_layernorm": True}


def shape(**options: Any) -> ModelShape:
    return ModelShape.of(from_tables({**SIZES, **options}), Vocabulary.unpadded(64))


def names(one: ModelShape) -> list[str]:
    return [parameter.full_name for parameter in parameter_table(one)]


@pytest.mark.parametrize(
    ("options", "family"),
    [
        (BLOOM, "bloom"),
        ({**BLOOM, "apply_residual_connection_post_layernorm": True, "layernorm_epsilon": 1e-3}, "bloom"),
        ({}, "gpt2"),
        ({"no_bias_gelu_fusion": True, "ffn_hidden_size": 24}, "gpt2"),
        (LLAMA, "llama"),
        ({**LLAMA, "num_query_groups": 1, "untie_embeddings_and_output_weights": True, "rotary_base": 5e5}, "llama"),
        ({**LLAMA, "qk_layernorm": True, "kv_channels": 12}, "qwen3"),
        ({**LLAMA, "window_size": "3,0"}, "mistral"),
        ({**LLAMA, "glu_activation": "geglu", "apply_layernorm_1p": True, "embedding_scale": 4.0}, "gemma"),
        ({**LLAMA, "glu_activation": "liglu", "disable_bias_linear": False, "layernorm_epsilon": 1e-3}, "llama"),
    ],
)
def test_the_family_follows_from_the_model(options: dict[str, Any], family: str) -> None:
    one = shape(**options)
    assert family_of(one, names(one)) is FAMILIES[family]


#: An option, its value in the model, and the value that the family has.
Difference = tuple[str, str, str]
NOT_ABSOLUTE = ("position_embedding_type", "alibi", "absolute")
NORM_MISSING, NORM_THERE = ("embed_layernorm", "false", "true"), ("embed_layernorm", "true", "false")


def pattern(family: str, *differences: Difference) -> str:
    """Return a regular expression for a refusal with exactly these names, in this order."""
    each = [rf"{name} [^,;]*\b{own}\b[^,;]*\b{theirs}\b[^,;]*" for name, own, theirs in differences]
    return rf"[^;]*\b{family}: " + ",".join([each[0], *(f" {one}" for one in each[1:])])


@pytest.mark.parametrize(
    ("options", "of_bloom", "of_gpt2"),
    [
        ({"position_embedding_type": "alibi"}, [NORM_MISSING], [NOT_ABSOLUTE]),
        (
            {**BLOOM, "ffn_hidden_size": 24, "no_bias_gelu_fusion": True},
            [("ffn_hidden_size", "24", "64"), ("the form of GeLU", "erf", "tanh")],
            [NOT_ABSOLUTE, NORM_THERE],
        ),
        (
            {"apply_residual_connection_post_layernorm": True},
            [("position_embedding_type", "absolute", "alibi"), NORM_MISSING],
            [("apply_residual_connection_post_layernorm", "true", "false")],
        ),
    ],
)
def test_what_no_family_can_be_is_named_with_both_values(
    options: dict[str, Any], of_bloom: list[Difference], of_gpt2: list[Difference]
) -> None:
    one = shape(**options)
    with pytest.raises(CheckpointError) as refused:
        family_of(one, names(one))
    wanted = f"{pattern('bloom', *of_bloom)};{pattern('gpt2', *of_gpt2)};.*llama: position_embedding_type"
    assert re.match(wanted, str(refused.value)), refused.value


@pytest.mark.parametrize(
    ("family", "options", "name", "own", "theirs"),
    [
        ("gpt2", {"normalization": "RMSNorm"}, "normalization", "RMSNorm", "LayerNorm"),
        ("gpt2", {"disable_bias_linear": True}, "disable_bias_linear", "true", "false"),
        ("gpt2", {"num_query_groups": 1}, "num_query_groups", "1", "2"),
        ("bloom", {**BLOOM, "glu_activation": "swiglu"}, "glu_activation", "swiglu", "missing"),
        ("bloom", {**BLOOM, "qk_layernorm": True}, "qk_layernorm", "true", "false"),
        (
            "bloom",
            {**BLOOM, "untie_embeddings_and_output_weights": True},
            *("untie_embeddings_and_output_weights", "true", "false"),
        ),
        ("llama", {**LLAMA, "rotary_percent": 0.5}, "rotary_percent", "0.5", "1.0"),
        ("llama", {**LLAMA, "add_qkv_bias": True}, "add_qkv_bias", "true", "false"),
        ("llama", {**LLAMA, "qk_layernorm": True, "disable_bias_linear": False}, "qk_layernorm", "true", "false"),
        (
            "qwen3",
            {**LLAMA, "qk_layernorm": True, "disable_bias_linear": False},
            "disable_bias_linear",
            "false",
            "true",
        ),
        ("gpt2", {"kv_channels": 4}, "kv_channels", "4", "8"),
        ("llama", {**LLAMA, "glu_activation": None}, r"[^,;]*\(glu_activation\)", "false", "true"),
        ("llama", {**LLAMA, "embed_layernorm": True}, "embed_layernorm", "true", "false"),
    ],
)
def test_what_one_family_cannot_be_is_refused_for_that_alone(
    family: str, options: dict[str, Any], name: str, own: str, theirs: str
) -> None:
    one = shape(**options)
    with pytest.raises(CheckpointError) as refused:
        family_of(one, names(one))
    (found,) = (text for text in str(refused.value).split("; ") if f"fit {family}:" in text)
    assert re.fullmatch(pattern(family, (name, own, theirs)), found), refused.value


def test_a_parameter_that_a_family_has_no_place_for_is_named() -> None:
    one = shape()
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.gate\.weight .*\b1 parameter"):
        family_of(one, [*names(one), "layers.1.mlp.gate.weight"])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_place_of_a_family_is_used_by_its_models_and_by_one_parameter_each(family: str) -> None:
    whole = {**LLAMA, "disable_bias_linear": False, "untie_embeddings_and_output_weights": True}
    plain = {**whole, "disable_bias_linear": True}
    gemma = {**LLAMA, "apply_layernorm_1p": True, "embedding_scale": 4.0}
    of_family = {"bloom": BLOOM, "gpt2": {}, "llama": whole, "mistral": {**plain, "window_size": "3,0"}}
    of_family |= {"qwen3": {**plain, "qk_layernorm": True}, "gemma": gemma}
    one = shape(**of_family[family])
    places = [place for name in names(one) if (place := FAMILIES[family].place_of(name))]
    assert len(places) == len(names(one))
    found = [name for place in places for name in place.names]
    assert len({*found}) == len(found)
    layers = {name.rpartition(".")[0] for name in found if ".1." not in name}
    layers |= {"lm_head"} if family == "gemma" else set()  # it is tied
    assert layers == {name.format(0) for place in FAMILIES[family].places.values() for name in place.names}


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_query_key_and_value_lie_head_by_head_here_and_each_for_all_heads_in_gpt2(kind: str) -> None:
    """Two heads of two rows: there and back again alone would not tell another order."""
    place = FAMILIES["gpt2"].place_of(f"layers.0.self_attention.query_key_value.{kind}")
    assert place is not None
    ours = torch.arange(12.0) if kind == "bias" else torch.arange(12.0)[:, None].expand(12, 4).contiguous()
    heads = Heads(2, 2)
    (theirs,) = to_theirs(place, ours, heads)
    assert [tuple(theirs.shape)] == their_shapes(place, ours.shape, heads) == [(12,) if kind == "bias" else (4, 12)]
    assert theirs.reshape(-1, 12)[0].tolist() == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]
    assert torch.equal(to_ours(place, [theirs], heads), ours)


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_llamas_queries_keys_and_values_lie_apart_and_heads_that_share_lie_together_here(kind: str) -> None:
    """Two groups of two heads of one row: query, query, key, value of the first group come first."""
    place = FAMILIES["llama"].place_of(f"layers.0.self_attention.query_key_value.{kind}")
    assert place is not None
    ours = torch.arange(8.0) if kind == "bias" else torch.arange(8.0)[:, None].expand(8, 4).contiguous()
    heads = Heads(4, 2)
    theirs = to_theirs(place, ours, heads)
    assert [tuple(one.shape) for one in theirs] == their_shapes(place, ours.shape, heads)
    rows = [one.reshape(len(one), -1)[:, 0].tolist() for one in theirs]
    assert rows == [[0, 1, 4, 5], [2, 6], [3, 7]]
    assert torch.equal(to_ours(place, theirs, heads), ours)
