from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.formats.errors import CheckpointError
from trainer.interchange.hf.families import FAMILIES, family_of
from trainer.interchange.hf.family import their_shape, to_ours, to_theirs
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import from_tables
from trainer.recipe.parameters import parameter_table
from trainer.recipe.vocabulary import Vocabulary

SIZES = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 8}
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
    ],
)
def test_the_family_follows_from_the_model(options: dict[str, Any], family: str) -> None:
    one = shape(**options)
    assert family_of(one, names(one)) is family_of(one, names(one), family) is FAMILIES[family]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"position_embedding_type": "alibi"},
            "it cannot be bloom: embed_layernorm is false here and true there; "
            "it cannot be gpt2: position_embedding_type is alibi here and absolute there",
        ),
        (
            {**BLOOM, "ffn_hidden_size": 24, "no_bias_gelu_fusion": True},
            "it cannot be bloom: ffn_hidden_size is 24 here and 64 there, the form of GeLU is erf here and tanh there; "
            "it cannot be gpt2: position_embedding_type is alibi here and absolute there, "
            "embed_layernorm is true here and false there",
        ),
        (
            {"apply_residual_connection_post_layernorm": True},
            "it cannot be bloom: position_embedding_type is absolute here and alibi there, embed_layernorm is false "
            "here and true there; it cannot be gpt2: apply_residual_connection_post_layernorm is true here and false "
            "there",
        ),
    ],
)
def test_what_no_family_can_be_is_named_with_both_values(options: dict[str, Any], said: str) -> None:
    one = shape(**options)
    with pytest.raises(CheckpointError) as refused:
        family_of(one, names(one))
    assert str(refused.value) == said


def test_a_parameter_that_a_family_has_no_place_for_is_named() -> None:
    one = shape()
    with pytest.raises(
        CheckpointError, match=r"layers.1.mlp.gate.weight has no place there \(1 parameters have none\)"
    ):
        family_of(one, [*names(one), "layers.1.mlp.gate.weight"], "gpt2")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_place_of_a_family_is_used_by_its_models_and_by_one_parameter_each(family: str) -> None:
    one = shape(**(BLOOM if family == "bloom" else {}))
    places = [FAMILIES[family].place_of(name) for name in names(one)]
    found = [place.name for place in places if place]
    assert len({*found}) == len(found) == len(names(one))
    of_first_block = {name for name in found if ".h.1." not in name}
    assert of_first_block == {place.name.format(0) for place in FAMILIES[family].places.values()}


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_query_key_and_value_lie_head_by_head_here_and_each_for_all_heads_in_gpt2(kind: str) -> None:
    """Two heads of two rows: there and back again alone would not tell another order."""
    place = FAMILIES["gpt2"].place_of(f"layers.0.self_attention.query_key_value.{kind}")
    assert place is not None
    ours = torch.arange(12.0) if kind == "bias" else torch.arange(12.0)[:, None].expand(12, 4).contiguous()
    theirs = to_theirs(place, ours, heads=2)
    assert tuple(theirs.shape) == their_shape(place, ours.shape) == ((12,) if kind == "bias" else (4, 12))
    assert theirs.reshape(-1, 12)[0].tolist() == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]
    assert torch.equal(to_ours(place, theirs, heads=2), ours)
