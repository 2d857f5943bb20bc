"""BLOOM: ALiBi and a LayerNorm after the word embedding. Its tensors equal ours; only the names differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainer.convert.hf.family import Config, Family, Misfit, at, differing, pairs, plain_misfits
from trainer.recipe.model_shape import ModelShape

_TABLE = {
    "word_embeddings.weight": at("transformer.word_embeddings.weight"),
    **pairs(
        {
            "word_embeddings.norm": "transformer.word_embeddings_layernorm",
            "layers.{}.input_layernorm": "transformer.h.{}.input_layernorm",
            "layers.{}.self_attention.query_key_value": "transformer.h.{}.self_attention.query_key_value",
            "layers.{}.self_attention.dense": "transformer.h.{}.self_attention.dense",
            "layers.{}.post_attention_layernorm": "transformer.h.{}.post_attention_layernorm",
            "layers.{}.mlp.dense_h_to_4h": "transformer.h.{}.mlp.dense_h_to_4h",
            "layers.{}.mlp.dense_4h_to_h": "transformer.h.{}.mlp.dense_4h_to_h",
            "final_layernorm": "transformer.ln_f",
        }
    ),
}


def _misfits(shape: ModelShape) -> list[Misfit]:
    own = differing(
        [
            ("position_embedding_type", shape.position_kind, "alibi"),
            # It always normalizes with its weight and bias, so no values make it an identity.
            ("embed_layernorm", shape.embedding_layernorm, True),
            ("ffn_hidden_size", shape.ffn_hidden, 4 * shape.hidden),
            ("the form of GeLU", "tanh" if shape.tanh_gelu else "erf", "tanh"),
        ]
    )
    return own + plain_misfits(shape)


def _config(shape: ModelShape, sequence_length: int) -> dict[str, Any]:
    return {
        "hidden_size": shape.hidden,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "vocab_size": shape.tokens,
        "seq_length": sequence_length,
        "layer_norm_epsilon": shape.layernorm_epsilon,
        "initializer_range": shape.init_std,
        "apply_residual_connection_post_layernorm": shape.residual_after_layernorm,
        "hidden_dropout": shape.hidden_dropout,
        "attention_dropout": shape.attention_dropout,
        "slow_but_exact": False,
        "pretraining_tp": 1,
    }


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    config = Config(values)
    config.one_of("tie_word_embeddings", (True,), default=True)
    hidden = config.size("hidden_size", "n_embed")
    config.one_of("n_inner", (None, 4 * hidden), default=None)
    return {
        "num_layers": config.size("n_layer", "num_hidden_layers"),
        "hidden_size": hidden,
        "num_attention_heads": config.size("n_head", "num_attention_heads"),
        "seq_length": config.size_or(2048, "seq_length"),
        "vocab_size": config.size("vocab_size"),
        "position_embedding_type": "alibi",
        "embed_layernorm": True,
        "layernorm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "init_method_std": config.number("initializer_range", 0.02),
        "apply_residual_connection_post_layernorm": config.flag("apply_residual_connection_post_layernorm"),
        "hidden_dropout": config.number("hidden_dropout", 0.0),
        "attention_dropout": config.number("attention_dropout", 0.0),
    }


BLOOM = Family(
    name="bloom",
    architecture="BloomForCausalLM",
    prefix="transformer.",
    places=_TABLE,
    misfits=_misfits,
    config=_config,
    options=_options,
    leftovers=re.compile(r"(?!)"),
)
