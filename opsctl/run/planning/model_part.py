"""What the model is and how large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opsctl.run.planning import arithmetic
from opsctl.run.planning.plan import InitStd, PlannedModel
from opsctl.run.planning.section import Section, billions, whole
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import output_parameters, word_embedding
from trainer.recipe.sizes import formula_parameters, parameters, parameters_of_block

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
    output = sum(one.size for one in output_parameters(shape))
    rows = f"vocabulary of {shape.vocabulary:,}, {_positions(shape)}"
    own_output = (("output layer", f"{whole(output)}, a weight of its own"),) if output else ()
    values = PlannedModel(
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        key_value_heads=shape.groups,
        sequence_length=options["seq_length"],
        vocab_size=vocabulary,
        padded_vocab_size=shape.vocabulary,
        params=real,
        formula=FORMULA,
        formula_params=formula,
        billion_rounded=round(formula / 1e9),
        layer_params=block,
        embedding_params=embedding,
        output_params=output,
        hidden_per_layer=shape.hidden // shape.layers,
        hidden_per_head=shape.hidden // shape.heads,
    )
    yield Section(
        "model",
        "Model",
        values,
        (
            ("shape", f"{shape.layers} layers, hidden size {shape.hidden:,}, {_heads(shape)}"),
            ("parameters", f"{whole(real)} ({billions(real)}): {rows}"),
            (
                "by the usual formula",
                f"{whole(formula)} ({billions(formula)}): l(12h^2+13h) + vh + sh + 2h, v = {vocabulary:,}",
            ),
            ("one block", f"{whole(block)}"),
            ("word embedding", f"{whole(embedding)}"),
            *own_output,
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


def _positions(shape: ModelShape) -> str:
    if shape.positions:
        return f"{shape.positions:,} learned positions"
    return "rotary positions" if shape.rotary_size else "no learned positions"


def _heads(shape: ModelShape) -> str:
    """A plain model's heads and MLP go without saying more of them."""
    shared = f", {shape.groups} of keys and values" if shape.groups < shape.heads else ""
    return f"{shape.heads} heads{shared}" + (f", {shape.gate} of {shape.ffn_hidden:,}" if shape.gate else "")
