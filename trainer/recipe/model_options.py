"""What options of the model follow from others, and what they must be together. Pure, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: What `--position-embedding-type` can be; the last two are two names of one thing.
POSITIONS = ("absolute", "alibi", "rope", "rotary")
_ROTARY = POSITIONS[2:]
#: What `--glu-activation` can be: SiLU, GeLU, ReLU, or the gate as it is (Shazeer, arXiv 2002.05202).
GATES = ("swiglu", "geglu", "reglu", "liglu")
ROTARY_BASE, ROTARY_PERCENT = 10000.0, 1.0
#: A dropout mask compares 16 bits with its probability, which is a whole multiple of 1 / this.
DROPOUT_LEVELS = 1 << 16
# Megatron-LM's width for --swiglu: two thirds of the plain MLP's, so that as many weights are trained, cut to this.
_FFN_MULTIPLE = 64


def with_model_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the model that follow from `given` ones; what is given stays."""
    values = dict(given)
    hidden, heads = values.get("hidden_size"), values.get("num_attention_heads")
    if hidden:
        narrower = max(8 * hidden // 3 // _FFN_MULTIPLE, 1) * _FFN_MULTIPLE
        values.setdefault("ffn_hidden_size", narrower if values.get("swiglu") else 4 * hidden)
        if heads and hidden % heads == 0:
            values.setdefault("kv_channels", hidden // heads)
    if values.get("seq_length"):
        values.setdefault("max_position_embeddings", values["seq_length"])
    if values.get("swiglu"):
        values.setdefault("glu_activation", "swiglu")
    if values.get("group_query_attention"):
        values.setdefault("num_query_groups", 1)
    if values.get("norm_epsilon") is not None:
        values.setdefault("layernorm_epsilon", values["norm_epsilon"])
    return values


def model_errors(options: Mapping[str, Any]) -> list[str]:
    """What contradicts what in the model, whatever its layout; both values are named."""
    return [
        *_width_errors(options),
        *_key_value_errors(options),
        *_length_errors(options),
        *_rotary_errors(options),
        *_norm_errors(options),
        *_gate_errors(options),
        *_dropout_errors(options),
    ]


def is_rotary(options: Mapping[str, Any]) -> bool:
    """Whether attention sees positions by turning queries and keys."""
    return options["position_embedding_type"] in _ROTARY


def turned_numbers(options: Mapping[str, Any]) -> int:
    """How many numbers of a head rotary positions turn; 0 without."""
    head_size = options["hidden_size"] // options["num_attention_heads"]
    return int(head_size * options["rotary_percent"]) if is_rotary(options) else 0


def has_tanh_gelu(options: Mapping[str, Any]) -> bool:
    """Whether GeLU is its tanh form, else the exact one."""
    return bool(options["openai_gelu"] or not options["no_bias_gelu_fusion"])


def uses_gelu(options: Mapping[str, Any]) -> bool:
    """Whether the form of GeLU makes a difference."""
    return options["glu_activation"] in (None, "geglu")


def _width_errors(options: Mapping[str, Any]) -> list[str]:
    hidden, heads, head_size = options["hidden_size"], options["num_attention_heads"], options["kv_channels"]
    if hidden is None or heads is None:
        return []
    if hidden % heads and head_size is None:
        return [f"--hidden-size {hidden} is not divisible by --num-attention-heads {heads}"]
    if head_size is not None and head_size * heads != hidden:
        return [f"--kv-channels {head_size} x --num-attention-heads {heads} is not --hidden-size {hidden}"]
    return []


def _length_errors(options: Mapping[str, Any]) -> list[str]:
    positions, length = options["max_position_embeddings"], options["seq_length"]
    if positions is None or length is None or positions >= length:
        return []
    return [f"--max-position-embeddings {positions} is smaller than --seq-length {length}"]


def _key_value_errors(options: Mapping[str, Any]) -> list[str]:
    heads, groups = options["num_attention_heads"], options["num_query_groups"]
    if groups is None:
        return []
    if not options["group_query_attention"]:
        return [f"--num-query-groups {groups} without --group-query-attention: give both, or neither"]
    if heads is not None and heads % groups:
        return [f"--num-attention-heads {heads} is not divisible by --num-query-groups {groups}"]
    return []


def _rotary_errors(options: Mapping[str, Any]) -> list[str]:
    share, kind = options["rotary_percent"], options["position_embedding_type"]
    if not is_rotary(options):
        return [
            f"--{name.replace('_', '-')} {options[name]:g} with --position-embedding-type {kind}: "
            "it is of rotary positions alone, give --position-embedding-type rope"
            for name, usual in (("rotary_base", ROTARY_BASE), ("rotary_percent", ROTARY_PERCENT))
            if options[name] != usual
        ]
    hidden, heads = options["hidden_size"], options["num_attention_heads"]
    if not 0 < share <= 1:
        return [f"--rotary-percent {share:g}: it is a share of each head, above 0 and at most 1"]
    if hidden is None or heads is None or hidden < heads:
        return []
    turned = turned_numbers(options)
    if turned == 0 or turned % 2:
        return [
            f"--position-embedding-type {kind} turns pairs of numbers, and --rotary-percent {share:g} of a head of "
            f"{hidden // heads} (--hidden-size {hidden} / --num-attention-heads {heads}) are {turned}"
        ]
    return []


def _gate_errors(options: Mapping[str, Any]) -> list[str]:
    gate = options["glu_activation"]
    return [f"--swiglu with --glu-activation {gate}: choose one"] if options["swiglu"] and gate != "swiglu" else []


def _norm_errors(options: Mapping[str, Any]) -> list[str]:
    epsilon, same = options["layernorm_epsilon"], options["norm_epsilon"]
    if same is None or same == epsilon:
        return []
    return [f"--norm-epsilon {same:g} with --layernorm-epsilon {epsilon:g}: they are the same, give one"]


def _dropout_errors(options: Mapping[str, Any]) -> list[str]:
    least, most = 1 / DROPOUT_LEVELS, 1 - 1 / DROPOUT_LEVELS
    return [
        f"--{key.replace('_', '-')} {options[key]}: masks have 16 bits: give 0, or from {least:.6g} to {most:.6g}"
        for key in ("attention_dropout", "hidden_dropout")
        if options[key] and not 0 < round(options[key] * DROPOUT_LEVELS) < DROPOUT_LEVELS
    ]
