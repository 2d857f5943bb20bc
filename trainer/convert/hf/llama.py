"""Llama: rotary positions, RMSNorm, a gated MLP. Queries, keys and values are separate, each for all heads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainer.convert.hf.family import Config, Family, Misfit, at, differing, pairs
from trainer.formats.errors import CheckpointError
from trainer.recipe.model_options import ROTARY_BASE
from trainer.recipe.model_shape import ModelShape

_TABLE = {
    "word_embeddings.weight": at("model.embed_tokens.weight"),
    "layers.{}.input_layernorm.weight": at("model.layers.{}.input_layernorm.weight"),
    "layers.{}.post_attention_layernorm.weight": at("model.layers.{}.post_attention_layernorm.weight"),
    "final_layernorm.weight": at("model.norm.weight"),
    **pairs(
        {
            "layers.{}.self_attention.query_key_value": at(
                *(f"model.layers.{{}}.self_attn.{one}_proj" for one in ("q", "k", "v"))
            ),
            "layers.{}.self_attention.dense": "model.layers.{}.self_attn.o_proj",
            "layers.{}.mlp.gate": "model.layers.{}.mlp.gate_proj",
            "layers.{}.mlp.dense_h_to_4h": "model.layers.{}.mlp.up_proj",
            "layers.{}.mlp.dense_4h_to_h": "model.layers.{}.mlp.down_proj",
        }
    ),
    "output_layer.weight": at("lm_head.weight"),
}
#: transformers' name of a gate's activation, by ours and by the tanh form of GeLU.
_ACTIVATIONS = {
    ("swiglu", True): "silu",
    ("swiglu", False): "silu",
    ("geglu", True): "gelu_pytorch_tanh",
    ("geglu", False): "gelu",
    ("reglu", True): "relu",
    ("reglu", False): "relu",
    ("liglu", True): "linear",
    ("liglu", False): "linear",
}
#: Ours by theirs, with synonyms.
_GATES: dict[str, dict[str, Any]] = {
    "silu": {"glu_activation": "swiglu"},
    "swish": {"glu_activation": "swiglu"},
    "gelu": {"glu_activation": "geglu", "no_bias_gelu_fusion": True},
    "gelu_pytorch_tanh": {"glu_activation": "geglu"},
    "gelu_new": {"glu_activation": "geglu"},
    "relu": {"glu_activation": "reglu"},
    "linear": {"glu_activation": "liglu"},
}


def _misfits(shape: ModelShape) -> list[Misfit]:
    return differing(
        [
            ("position_embedding_type", shape.position_kind, "rope"),
            ("rotary_percent", shape.rotary_size / shape.head_size if shape.rotary_size else 1.0, 1.0),
            ("normalization", "RMSNorm" if shape.rms_norm else "LayerNorm", "RMSNorm"),
            ("embed_layernorm", shape.embedding_layernorm, False),
            ("apply_residual_connection_post_layernorm", shape.residual_after_layernorm, False),
            ("a gated MLP (glu_activation)", shape.gate is not None, True),
            # Its biases are in all four products of attention, or in none.
            ("add_qkv_bias", shape.qkv_biases and not shape.linear_biases, False),
            ("qk_layernorm", shape.query_key_norm, False),
        ]
    )


def _config(shape: ModelShape, sequence_length: int) -> dict[str, Any]:
    return {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn_hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.groups,
        "head_dim": shape.head_size,
        "max_position_embeddings": sequence_length,
        "vocab_size": shape.tokens,
        "hidden_act": _ACTIVATIONS[shape.gate or "", shape.tanh_gelu],
        "rms_norm_eps": shape.layernorm_epsilon,
        # Programs before transformers 5 read the first, those since then the second.
        "rope_theta": shape.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rotary_base},
        "attention_bias": shape.linear_biases,
        "mlp_bias": shape.linear_biases,
        "initializer_range": shape.init_std,
        "attention_dropout": shape.attention_dropout,
        "tie_word_embeddings": shape.tied,
    }


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    config = Config(values)
    has_biases = config.flag("attention_bias")
    config.one_of("mlp_bias", (has_biases,), default=False)
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    config.one_of("head_dim", (None, hidden // heads), default=None)
    groups = config.size_or(heads, "num_key_value_heads")
    positions = config.size_or(2048, "max_position_embeddings")
    shared = {"group_query_attention": True, "num_query_groups": groups} if groups != heads else {}
    return {
        "num_layers": config.size("num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": config.size("intermediate_size"),
        "num_attention_heads": heads,
        **shared,
        "seq_length": positions,
        "max_position_embeddings": positions,
        "vocab_size": config.size("vocab_size"),
        "position_embedding_type": "rope",
        "rotary_base": _rotary_base(values),
        "normalization": "RMSNorm",
        "layernorm_epsilon": config.number("rms_norm_eps", 1e-6),
        **_GATES[config.one_of("hidden_act", tuple(_GATES), default="silu")],
        "disable_bias_linear": not has_biases,
        "untie_embeddings_and_output_weights": not config.flag("tie_word_embeddings"),
        "init_method_std": config.number("initializer_range", 0.02),
        "hidden_dropout": 0.0,
        "attention_dropout": config.number("attention_dropout", 0.0),
    }


def _rotary_base(values: Mapping[str, Any]) -> float:
    """Return the base, from either key. Raises CheckpointError for scaled positions, which are not supported."""
    nested = {name: values.get(name) or {} for name in ("rope_parameters", "rope_scaling")}
    for name, one in nested.items():
        if not isinstance(one, Mapping):
            raise CheckpointError(f"config.json: {name} is not an object")
        kind = one.get("rope_type", one.get("type", "default"))
        if kind != "default":
            raise CheckpointError(
                f"config.json: {name} are of type {str(kind)[:40]!a}, the trainer supports only default ones"
            )
        Config(one).one_of("partial_rotary_factor", (None, 1, 1.0), default=None)
    Config(values).one_of("partial_rotary_factor", (None, 1, 1.0), default=None)
    top = Config(values).number("rope_theta", ROTARY_BASE)
    return Config(nested["rope_parameters"]).number("rope_theta", top)


LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    prefix="model.",
    places=_TABLE,
    misfits=_misfits,
    config=_config,
    options=_options,
    # The frequencies, which older files have in every block.
    leftovers=re.compile(r"model\.layers\.[0-9]+\.self_attn\.rotary_emb\.inv_freq"),
)
