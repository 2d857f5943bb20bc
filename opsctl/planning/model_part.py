"""What the model is and how large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opsctl.planning import arithmetic
from opsctl.planning.plan import InitStd, PlannedModel
from opsctl.planning.section import Section, billions, whole
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import word_embedding
from trainer.recipe.sizes import formula_parameters, parameters, parameters_of_block
from trainer.recipe.vocabulary import Vocabulary

#: The usual formula of parameters as JSON says it.
FORMULA = "l*(12h^2+13h)+v*h+s*h+2h"


def model_shape(options: Mapping[str, Any]) -> ModelShape | None:
    """The model's shape; None while the options do not say it all."""
    needed = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")
    vocabulary = options["vocab_size"] or options["pad_vocab_size_to"]
    if vocabulary is None or any(options[key] is None for key in needed):
        return None
    try:
        return ModelShape.of(options, Vocabulary.of(vocabulary, options))
    except ValueError:
        return None


def model_sections(options: Mapping[str, Any], shape: ModelShape) -> Iterator[Section]:
    """The count of what is really trained beside the usual formula, and the spread of initial weights."""
    real = parameters(shape)
    vocabulary = options["vocab_size"] or shape.vocabulary
    formula = formula_parameters(shape.layers, shape.hidden, options["seq_length"], vocabulary)
    block, embedding = parameters_of_block(shape), word_embedding(shape).size
    positions = f"{shape.positions:,} learned positions" if shape.positions else "no learned positions"
    values = PlannedModel(
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        sequence_length=options["seq_length"],
        vocab_size=vocabulary,
        padded_vocab_size=shape.vocabulary,
        params=real,
        formula=FORMULA,
        formula_params=formula,
        billion_rounded=round(formula / 1e9),
        layer_params=block,
        embedding_params=embedding,
        hidden_per_layer=shape.hidden // shape.layers,
        hidden_per_head=shape.hidden // shape.heads,
    )
    yield Section(
        "model",
        "Model",
        values,
        (
            ("shape", f"{shape.layers} layers, hidden size {shape.hidden:,}, {shape.heads} heads"),
            ("parameters", f"{whole(real)} ({billions(real)}): vocabulary of {shape.vocabulary:,}, {positions}"),
            (
                "by the usual formula",
                f"{whole(formula)} ({billions(formula)}): l(12h^2+13h) + vh + sh + 2h, v = {vocabulary:,}",
            ),
            ("one block", f"{whole(block)}"),
            ("word embedding", f"{whole(embedding)}"),
            ("hidden size per layer", f"{values.hidden_per_layer}, per head {values.hidden_per_head}"),
        ),
    )
    third, fifths = arithmetic.init_std_third(shape.hidden), arithmetic.init_std_two_fifths(shape.hidden)
    given = options["init_method_std"]
    yield Section(
        "init_std",
        "Initial weights",
        InitStd(init_method_std=given, sqrt_1_over_3h=third, sqrt_2_over_5h=fifths),
        (("standard deviation", f"{given:g}; sqrt(1/(3h)) is {third:.6f}, sqrt(2/(5h)) is {fifths:.6f}"),),
    )
