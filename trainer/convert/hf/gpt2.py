"""GPT-2: learned positions. Linear layers are transposed; query, key and value are each stored for all heads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainer.convert.hf.family import Config, Family, Misfit, at, differing, pairs, plain_misfits
from trainer.recipe.model_shape import ModelShape

_TABLE = {
    "word_embeddings.weight": at("transformer.wte.weight"),
    "position_embeddings.weight": at("transformer.wpe.weight"),
    **pairs(
        {
            "layers.{}.input_layernorm": "transformer.h.{}.ln_1",
            "layers.{}.self_attention.query_key_value": at(
                "transformer.h.{}.attn.c_attn", transposed=True, blocked=True
            ),
            "layers.{}.self_attention.dense": at("transformer.h.{}.attn.c_proj", transposed=True),
            "layers.{}.post_attention_layernorm": "transformer.h.{}.ln_2",
            "layers.{}.mlp.dense_h_to_4h": at("transformer.h.{}.mlp.c_fc", transposed=True),
            "layers.{}.mlp.dense_4h_to_h": at("transformer.h.{}.mlp.c_proj", transposed=True),
            "final_layernorm": "transformer.ln_f",
        }
    ),
}
#: transformers' names for the two forms of GeLU.
_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh")
_ERF = ("gelu", "gelu_python")


def _misfits(shape: ModelShape) -> list[Misfit]:
    residual = shape.residual_after_layernorm
    own = differing(
        [
            ("position_embedding_type", shape.position_kind, "absolute"),
            ("embed_layernorm", shape.embedding_layernorm, False),
            ("apply_residual_connection_post_layernorm", residual, False),
        ]
    )
    return own + plain_misfits(shape)


def _config(shape: ModelShape, _sequence_length: int) -> dict[str, Any]:
    return {
        "n_embd": shape.hidden,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": None if shape.ffn_hidden == 4 * shape.hidden else shape.ffn_hidden,
        "n_positions": shape.positions,
        "vocab_size": shape.tokens,
        "activation_function": "gelu_new" if shape.tanh_gelu else "gelu",
        "layer_norm_epsilon": shape.layernorm_epsilon,
        "initializer_range": shape.init_std,
        "embd_pdrop": shape.hidden_dropout,
        "resid_pdrop": shape.hidden_dropout,
        "attn_pdrop": shape.attention_dropout,
    }


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    config = Config(values)
    config.one_of("tie_word_embeddings", (True,), default=True)
    config.one_of("scale_attn_weights", (True,), default=True)
    config.one_of("scale_attn_by_inverse_layer_idx", (False,), default=False)
    config.one_of("add_cross_attention", (False,), default=False)
    activation = config.one_of("activation_function", (*_TANH, *_ERF), default="gelu_new")
    dropout = config.number("resid_pdrop", 0.1)
    config.one_of("embd_pdrop", (dropout,), default=0.1)
    hidden, positions = config.size("n_embd", "hidden_size"), config.size("n_positions", "max_position_embeddings")
    return {
        "num_layers": config.size("n_layer", "num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": config.size_or(4 * hidden, "n_inner"),
        "num_attention_heads": config.size("n_head", "num_attention_heads"),
        "seq_length": positions,
        "max_position_embeddings": positions,
        "vocab_size": config.size("vocab_size"),
        "position_embedding_type": "absolute",
        "no_bias_gelu_fusion": activation in _ERF,
        "layernorm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "init_method_std": config.number("initializer_range", 0.02),
        "hidden_dropout": dropout,
        "attention_dropout": config.number("attn_pdrop", 0.1),
    }


GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    places=_TABLE,
    misfits=_misfits,
    config=_config,
    options=_options,
    # The causal mask, which older files have in every block.
    leftovers=re.compile(r"transformer\.h\.[0-9]+\.attn\.(?:masked_)?bias"),
)
