"""The families of published models: the names, shapes and order of their tensors, and their `config.json`.

A family is a table from our parameters to theirs, a table of configuration values, and what its models must be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trainer.formats.errors import CheckpointError
from trainer.recipe.model_options import LLAMA3, LLAMA3_TURNS, ROTARY_BASE, YARN, YARN_TURNS, RotaryScaling
from trainer.recipe.model_shape import ModelShape

_BLOCK = re.compile(r"layers\.([0-9]+)\.")


@dataclass(frozen=True)
class Place:
    """The place of one of our parameters in their model: one tensor, or separate query, key and value."""

    names: tuple[str, ...]
    transposed: bool = False  # [in, out], as in GPT-2's linear layers; ours are [out, in]
    blocked: bool = False  # all queries, all keys, all values; ours are grouped by heads


@dataclass(frozen=True)
class Heads:
    """The numbers of attention heads and of key and value heads."""

    queries: int
    groups: int

    @classmethod
    def of(cls, shape: ModelShape) -> Heads:
        """Return the heads of a model."""
        return cls(shape.heads, shape.groups)

    def rows(self, whole: int) -> list[int]:
        """Return the rows of query, key and value among `whole` rows."""
        head = whole // (self.queries + 2 * self.groups)
        return [self.queries * head, self.groups * head, self.groups * head]


@dataclass(frozen=True)
class Family:
    """One family of transformers' models.

    places: the layer of our parameters, `{}` for the number of a block, to theirs, without `.weight` and `.bias`.
    values: rows of (key in `config.json`, attribute of the shape, option of the trainer, default; ... for none).
    needs: the properties that a shape must have, by the names of `_properties`. more: further keys of the
    configuration. options: further options for a configuration; raises CheckpointError for an unsupported model.
    leftovers: a pattern of names in their files that are not parameters.
    """

    name: str  # model_type in `config.json`
    architecture: str
    prefix: str  # of every name; missing in files of the model without its output layer
    places: Mapping[str, Place]
    values: tuple[tuple[str, str, str, Any], ...]
    needs: Callable[[ModelShape], dict[str, Any]]
    more: Callable[[ModelShape, int], dict[str, Any]]
    options: Callable[[Config], dict[str, Any]]
    leftovers: re.Pattern[str]

    def place_of(self, name: str) -> Place | None:
        """Return the place of our parameter `name` in their model; None if it has none."""
        block = _BLOCK.match(name)
        layer, _, kind = (f"layers.{{}}.{name[block.end() :]}" if block else name).rpartition(".")
        place = self.places.get(layer)
        if place is None:
            return None
        names = tuple(f"{one.format(block[1] if block else '')}.{kind}" for one in place.names)
        return Place(names, place.transposed and kind == "weight", place.blocked)

    def config(self, shape: ModelShape, sequence_length: int) -> dict[str, Any]:
        """Return the `config.json` of a shape that the family can have."""
        return {**{key: getattr(shape, one) for key, one, _, _ in self.values}, **self.more(shape, sequence_length)}

    def options_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the trainer's options for a `config.json`. Raises CheckpointError for an unsupported model."""
        config = Config(values)
        read = {option: config.number(key, default) for key, _, option, default in self.values}
        return {**read, **self.options(config)}


class Config:
    """A `config.json` that is read value by value. A wrong type or value raises an error with its name."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def number(self, key: str, default: Any = ...) -> Any:
        """Return a value of the default's type; without a default a positive integer."""
        found = self.values.get(key, self.values.get(_SYNONYMS.get(key, "")))
        value = default if found is None and default is not ... else found
        if isinstance(default, bool):
            is_right, wanted = isinstance(value, bool), "a boolean"
        elif isinstance(default, float):
            is_right = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
            wanted = "a number of at least 0"
        else:
            is_right = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            wanted = "a positive integer"
        if not is_right:
            raise CheckpointError(f"config.json: {key} is {_shown(value)}, not {wanted}")
        return float(value) if isinstance(default, float) else value

    def one_of(self, key: str, *allowed: Any, default: Any = None) -> Any:
        """Return a value, which must be one that the trainer's models can have."""
        value = self.values.get(key, default)
        if value not in allowed:
            can_be = " or ".join(map(_shown, allowed))
            raise CheckpointError(f"config.json: {key} is {_shown(value)}, a model of the trainer has {can_be}")
        return value


#: Other names of keys.
_SYNONYMS = {
    "hidden_size": "n_embed",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "missing"}[value]
    text = str(value)[:80]
    return text if text.isprintable() else ascii(text)


def _properties(shape: ModelShape) -> dict[str, Any]:
    """Return the properties of a model that a family may not be able to have."""
    return {
        "position_embedding_type": "rope" if shape.rotary_size else shape.position_kind,
        "rotary_percent": shape.rotary_size / shape.head_size if shape.rotary_size else 1.0,
        "normalization": "RMSNorm" if shape.rms_norm else "LayerNorm",
        "embed_layernorm": shape.embedding_layernorm,
        "apply_residual_connection_post_layernorm": shape.residual_after_layernorm,
        "ffn_hidden_size": shape.ffn_hidden,
        "the form of GeLU": "tanh" if shape.tanh_gelu else "erf",
        "disable_bias_linear": not shape.linear_biases,
        "glu_activation": shape.gate,
        "a gated MLP (glu_activation)": shape.gate is not None,
        "num_query_groups": shape.groups,
        "kv_channels": shape.head_size,
        "window_size": shape.window,
        "apply_layernorm_1p": shape.norms_about_zero,
        "embedding_scale": shape.embedding_scale,
        # Llama's biases are in all four products of attention, or in none.
        "add_qkv_bias": shape.qkv_biases and not shape.linear_biases,
        "qk_layernorm": shape.query_key_norm,
        "untie_embeddings_and_output_weights": not shape.tied,
    }


def _plain_needs(shape: ModelShape) -> dict[str, Any]:
    """Return what a family needs that has no feature after GPT-3: no gates, no shared keys and values."""
    return {
        "normalization": "LayerNorm",
        "disable_bias_linear": False,
        "glu_activation": None,
        "num_query_groups": shape.heads,
        "kv_channels": shape.hidden // shape.heads,
        "window_size": None,
        "apply_layernorm_1p": False,
        "embedding_scale": 1.0,
        "qk_layernorm": False,
        "untie_embeddings_and_output_weights": False,
    }


_LAYERS = ("input_layernorm", "self_attention.dense", "post_attention_layernorm")
_MLP = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
_QKV = "self_attention.query_key_value"
_RESIDUAL = "apply_residual_connection_post_layernorm"

#: ALiBi and a LayerNorm after the word embedding. Its tensors equal ours; only the names differ.
BLOOM = Family(
    name="bloom",
    architecture="BloomForCausalLM",
    prefix="transformer.",
    places={
        "word_embeddings": Place(("transformer.word_embeddings",)),
        "word_embeddings.norm": Place(("transformer.word_embeddings_layernorm",)),
        **{f"layers.{{}}.{one}": Place((f"transformer.h.{{}}.{one}",)) for one in (*_LAYERS, _QKV, *_MLP)},
        "final_layernorm": Place(("transformer.ln_f",)),
    },
    values=(
        ("hidden_size", "hidden", "hidden_size", ...),
        ("n_layer", "layers", "num_layers", ...),
        ("n_head", "heads", "num_attention_heads", ...),
        ("vocab_size", "tokens", "vocab_size", ...),
        ("layer_norm_epsilon", "layernorm_epsilon", "layernorm_epsilon", 1e-5),
        ("initializer_range", "init_std", "init_method_std", 0.02),
        (_RESIDUAL, "residual_after_layernorm", _RESIDUAL, False),
        ("hidden_dropout", "hidden_dropout", "hidden_dropout", 0.0),
        ("attention_dropout", "attention_dropout", "attention_dropout", 0.0),
    ),
    needs=lambda shape: {
        "position_embedding_type": "alibi",
        # It always normalizes with its weight and bias, so no values make it an identity.
        "embed_layernorm": True,
        "ffn_hidden_size": 4 * shape.hidden,
        "the form of GeLU": "tanh",
        **_plain_needs(shape),
    },
    more=lambda _shape, sequence_length: {"seq_length": sequence_length, "slow_but_exact": False, "pretraining_tp": 1},
    options=lambda config: _bloom_options(config),
    leftovers=re.compile(r"(?!)"),
)


def _bloom_options(config: Config) -> dict[str, Any]:
    config.one_of("tie_word_embeddings", True, default=True)
    config.one_of("n_inner", None, 4 * config.number("hidden_size"))
    length = config.number("seq_length", 2048)
    return {"seq_length": length, "position_embedding_type": "alibi", "embed_layernorm": True}


#: transformers' names for the two forms of GeLU.
_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh")
_ERF = ("gelu", "gelu_python")

#: Learned positions. Linear layers are transposed; query, key and value are each stored for all heads.
GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    places={
        "word_embeddings": Place(("transformer.wte",)),
        "position_embeddings": Place(("transformer.wpe",)),
        "layers.{}.input_layernorm": Place(("transformer.h.{}.ln_1",)),
        f"layers.{{}}.{_QKV}": Place(("transformer.h.{}.attn.c_attn",), transposed=True, blocked=True),
        "layers.{}.self_attention.dense": Place(("transformer.h.{}.attn.c_proj",), transposed=True),
        "layers.{}.post_attention_layernorm": Place(("transformer.h.{}.ln_2",)),
        "layers.{}.mlp.dense_h_to_4h": Place(("transformer.h.{}.mlp.c_fc",), transposed=True),
        "layers.{}.mlp.dense_4h_to_h": Place(("transformer.h.{}.mlp.c_proj",), transposed=True),
        "final_layernorm": Place(("transformer.ln_f",)),
    },
    values=(
        ("n_embd", "hidden", "hidden_size", ...),
        ("n_layer", "layers", "num_layers", ...),
        ("n_head", "heads", "num_attention_heads", ...),
        ("n_positions", "positions", "max_position_embeddings", ...),
        ("vocab_size", "tokens", "vocab_size", ...),
        ("layer_norm_epsilon", "layernorm_epsilon", "layernorm_epsilon", 1e-5),
        ("initializer_range", "init_std", "init_method_std", 0.02),
        ("resid_pdrop", "hidden_dropout", "hidden_dropout", 0.1),
        ("attn_pdrop", "attention_dropout", "attention_dropout", 0.1),
    ),
    needs=lambda shape: {
        "position_embedding_type": "absolute",
        "embed_layernorm": False,
        "apply_residual_connection_post_layernorm": False,
        **_plain_needs(shape),
    },
    more=lambda shape, _sequence_length: {
        "n_inner": None if shape.ffn_hidden == 4 * shape.hidden else shape.ffn_hidden,
        "activation_function": "gelu_new" if shape.tanh_gelu else "gelu",
        "embd_pdrop": shape.hidden_dropout,
    },
    options=lambda config: _gpt2_options(config),
    # The causal mask, which older files have in every block.
    leftovers=re.compile(r"transformer\.h\.[0-9]+\.attn\.(?:masked_)?bias"),
)


def _gpt2_options(config: Config) -> dict[str, Any]:
    config.one_of("tie_word_embeddings", True, default=True)
    config.one_of("scale_attn_weights", True, default=True)
    config.one_of("scale_attn_by_inverse_layer_idx", False, default=False)
    config.one_of("add_cross_attention", False, default=False)
    config.one_of("embd_pdrop", config.number("resid_pdrop", 0.1), default=0.1)
    return {
        "ffn_hidden_size": config.number("n_inner", 4 * config.number("n_embd")),
        "seq_length": config.number("n_positions"),
        "position_embedding_type": "absolute",
        "no_bias_gelu_fusion": config.one_of("activation_function", *_TANH, *_ERF, default="gelu_new") in _ERF,
    }


#: Options of a gate, by transformers' name of its activation. Of synonyms the first is written.
_GATES: dict[str, dict[str, Any]] = {
    "silu": {"glu_activation": "swiglu"},
    "swish": {"glu_activation": "swiglu"},
    "gelu": {"glu_activation": "geglu", "no_bias_gelu_fusion": True},
    "gelu_pytorch_tanh": {"glu_activation": "geglu"},
    "gelu_new": {"glu_activation": "geglu"},
    "relu": {"glu_activation": "reglu"},
    "linear": {"glu_activation": "liglu"},
}

#: Rotary positions, RMSNorm, a gated MLP. Queries, keys and values are separate, each for all heads.
LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    prefix="model.",
    places={
        "word_embeddings": Place(("model.embed_tokens",)),
        "layers.{}.input_layernorm": Place(("model.layers.{}.input_layernorm",)),
        "layers.{}.post_attention_layernorm": Place(("model.layers.{}.post_attention_layernorm",)),
        "final_layernorm": Place(("model.norm",)),
        f"layers.{{}}.{_QKV}": Place(tuple(f"model.layers.{{}}.self_attn.{one}_proj" for one in "qkv"), blocked=True),
        "layers.{}.self_attention.dense": Place(("model.layers.{}.self_attn.o_proj",)),
        "layers.{}.mlp.gate": Place(("model.layers.{}.mlp.gate_proj",)),
        "layers.{}.mlp.dense_h_to_4h": Place(("model.layers.{}.mlp.up_proj",)),
        "layers.{}.mlp.dense_4h_to_h": Place(("model.layers.{}.mlp.down_proj",)),
        "output_layer": Place(("lm_head",)),
    },
    values=(
        ("hidden_size", "hidden", "hidden_size", ...),
        ("intermediate_size", "ffn_hidden", "ffn_hidden_size", ...),
        ("num_hidden_layers", "layers", "num_layers", ...),
        ("num_attention_heads", "heads", "num_attention_heads", ...),
        ("vocab_size", "tokens", "vocab_size", ...),
        ("rms_norm_eps", "layernorm_epsilon", "layernorm_epsilon", 1e-6),
        ("initializer_range", "init_std", "init_method_std", 0.02),
        ("attention_dropout", "attention_dropout", "attention_dropout", 0.0),
    ),
    needs=lambda _shape: {
        "position_embedding_type": "rope",
        "rotary_percent": 1.0,
        "normalization": "RMSNorm",
        "embed_layernorm": False,
        "apply_residual_connection_post_layernorm": False,
        "a gated MLP (glu_activation)": True,
        "add_qkv_bias": False,
        "qk_layernorm": False,
        "window_size": None,
        "apply_layernorm_1p": False,
        "embedding_scale": 1.0,
    },
    more=lambda shape, sequence_length: _llama_config(shape, sequence_length),
    options=lambda config: _llama_options(config),
    # The frequencies, which older files have in every block.
    leftovers=re.compile(r"model\.layers\.[0-9]+\.self_attn\.rotary_emb\.inv_freq"),
)


def _llama_config(shape: ModelShape, sequence_length: int) -> dict[str, Any]:
    gate = {"glu_activation": shape.gate, "no_bias_gelu_fusion": True}
    if shape.gate != "geglu" or shape.tanh_gelu:
        gate.pop("no_bias_gelu_fusion")
    return {
        "num_key_value_heads": shape.groups,
        "head_dim": shape.head_size,
        "max_position_embeddings": sequence_length,
        "hidden_act": next(name for name, options in _GATES.items() if options == gate),
        # Programs before transformers 5 read the first, those since then the second.
        "rope_theta": shape.rotary_base,
        "rope_parameters": {"rope_theta": shape.rotary_base, **_scaling_config(shape.rotary_scaling)},
        **({"rope_scaling": _scaling_config(shape.rotary_scaling)} if shape.rotary_scaling else {}),
        "attention_bias": shape.linear_biases,
        "mlp_bias": shape.linear_biases,
        "tie_word_embeddings": shape.tied,
    }


def _llama_options(config: Config, head_size: int | None = None) -> dict[str, Any]:
    """Return the options of a family of Llama's kind. head_size: the default of `head_dim`; None: hidden / heads."""
    has_biases = config.number("attention_bias", False)
    config.one_of("mlp_bias", has_biases, default=False)
    hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
    head_size = config.number("head_dim", head_size or max(1, hidden // heads))
    groups = config.number("num_key_value_heads", heads)
    positions = config.number("max_position_embeddings", 2048)
    return {
        **({"group_query_attention": True, "num_query_groups": groups} if groups != heads else {}),
        "seq_length": positions,
        "max_position_embeddings": positions,
        **({"kv_channels": head_size} if head_size * heads != hidden else {}),
        **_rotary_options(config, positions),
        "normalization": "RMSNorm",
        **_GATES[config.one_of("hidden_act", *_GATES, default="silu")],
        "disable_bias_linear": not has_biases,
        "untie_embeddings_and_output_weights": not config.number("tie_word_embeddings", False),
        "hidden_dropout": 0.0,
    }


#: The values of a scaling that a model of the trainer always has.
_FIXED = {
    LLAMA3: dict(zip(("low_freq_factor", "high_freq_factor"), LLAMA3_TURNS, strict=True)),
    YARN: dict(zip(("beta_slow", "beta_fast"), YARN_TURNS, strict=True)),
}


def _scaling_config(scaling: RotaryScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"rope_type": "default"}
    sizes = {"factor": scaling.factor, "original_max_position_embeddings": scaling.original_length}
    return {"rope_type": scaling.kind, **sizes, **_FIXED[scaling.kind]}


def _rotary_options(config: Config, positions: int) -> dict[str, Any]:
    """Return the options of rotary positions, from either key. Raises CheckpointError for an unsupported scaling."""
    config.one_of("partial_rotary_factor", None, 1, 1.0)
    found: dict[str, Any] = {"position_embedding_type": "rope"}
    found["rotary_base"] = config.number("rope_theta", float(ROTARY_BASE))
    for name in ("rope_scaling", "rope_parameters"):
        nested = config.values.get(name) or {}
        if not isinstance(nested, Mapping):
            raise CheckpointError(f"config.json: {name} is not an object")
        within = Config(nested)
        within.one_of("partial_rotary_factor", None, 1, 1.0)
        found["rotary_base"] = within.number("rope_theta", found["rotary_base"])
        kind = nested.get("rope_type", nested.get("type", "default"))
        if kind == "default":
            continue
        if kind not in _FIXED:
            raise CheckpointError(
                f"config.json: {name} are of type {str(kind)[:40]!a}, the trainer supports default, {', '.join(_FIXED)}"
            )
        for key, value in _FIXED[kind].items():
            within.one_of(key, value, default=value)
        for key in ("attention_factor", "mscale", "mscale_all_dim", "truncate"):
            within.one_of(key, None, *([True] if key == "truncate" else []))
        found["original_max_position_embeddings"] = within.number("original_max_position_embeddings", positions)
        factor = within.number("factor", 1.0)
        if kind == YARN:
            found |= {"position_embedding_type": YARN, "rotary_scaling_factor": factor}
        else:
            found |= {"use_rope_scaling": True, "rope_scaling_factor": factor}
    return found


#: Llama with a norm of each head's query and key, and without biases.
QWEN3 = replace(
    LLAMA,
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    places={
        **LLAMA.places,
        **{
            f"layers.{{}}.self_attention.{one}_layernorm": Place((f"model.layers.{{}}.self_attn.{one}_norm",))
            for one in "qk"
        },
    },
    needs=lambda shape: {**LLAMA.needs(shape), "qk_layernorm": True, "disable_bias_linear": True},
    more=lambda shape, sequence_length: {**_llama_config(shape, sequence_length), "use_sliding_window": False},
    options=lambda config: _qwen3_options(config),
)


def _qwen3_options(config: Config) -> dict[str, Any]:
    config.one_of("attention_bias", False, default=False)
    config.one_of("use_sliding_window", False, default=False)
    return {**_llama_options(config, head_size=128), "qk_layernorm": True}


#: Llama with a window, and without biases.
MISTRAL = replace(
    LLAMA,
    name="mistral",
    architecture="MistralForCausalLM",
    needs=lambda shape: {**LLAMA.needs(shape), "window_size": shape.window or "a window", "disable_bias_linear": True},
    more=lambda shape, length: {**_llama_config(shape, length), "sliding_window": shape.window},
    options=lambda config: _mistral_options(config),
)


def _mistral_options(config: Config) -> dict[str, Any]:
    for key in ("attention_bias", "mlp_bias"):
        config.one_of(key, False, default=False)
    whole = "sliding_window" in config.values and config.values["sliding_window"] is None
    window = None if whole else config.number("sliding_window", 4096)
    return {**_llama_options(config), **({"window_size": f"{window - 1},0"} if window else {})}


#: Llama with norms about 0 and a word embedding that is scaled on its way in; Gemma 2 and 3 have more.
GEMMA = replace(
    LLAMA,
    name="gemma",
    architecture="GemmaForCausalLM",
    needs=lambda shape: {
        **LLAMA.needs(shape),
        "apply_layernorm_1p": True,
        "embedding_scale": math.sqrt(shape.hidden),
        "disable_bias_linear": True,
        "untie_embeddings_and_output_weights": False,
    },
    options=lambda config: _gemma_options(config),
)


def _gemma_options(config: Config) -> dict[str, Any]:
    for key, allowed in (("attention_bias", False), ("tie_word_embeddings", True)):
        config.one_of(key, allowed, default=allowed)
    config.one_of("use_bidirectional_attention", None, False)
    gates = [config.values.get(key) for key in ("hidden_activation", "hidden_act")]
    # Its first files name the exact GeLU, and transformers computes the tanh form all the same.
    gate = "gelu_pytorch_tanh" if gates[0] is None and gates[1] in (None, "gelu") else gates[0] or gates[1]
    llama = Config({"tie_word_embeddings": True, **config.values, "hidden_act": gate})
    scale = math.sqrt(config.number("hidden_size"))
    return {**_llama_options(llama, head_size=256), "apply_layernorm_1p": True, "embedding_scale": scale}


FAMILIES: dict[str, Family] = {family.name: family for family in (BLOOM, GPT2, LLAMA, QWEN3, MISTRAL, GEMMA)}


def family_of(shape: ModelShape, names: Collection[str]) -> Family:
    """Return the family for a model of this shape and these parameters.

    Raises CheckpointError with each misfit, both values of each.
    """
    reasons = {}
    for family in FAMILIES.values():
        has = _properties(shape)
        why = [
            f"{name} is {_shown(has[name])} here and {_shown(needed)} there"
            for name, needed in family.needs(shape).items()
            if has[name] != needed
        ]
        homeless = [name for name in names if family.place_of(name) is None]
        if homeless and not why:
            why = [f"{homeless[0]} is not part of it ({len(homeless)} parameters have none)"]
        if not why:
            return family
        reasons[family.name] = why
    raise CheckpointError("; ".join(f"it does not fit {name}: {', '.join(why)}" for name, why in reasons.items()))


def family_named(model_type: object) -> Family:
    """Return the family of a `config.json`. Raises CheckpointError for an unsupported one."""
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise CheckpointError(f"config.json: model_type is {model_type!r:.80}, the trainer has {', '.join(FAMILIES)}")
    return family


def their_shapes(place: Place, shape: Sequence[int], heads: Heads) -> list[tuple[int, ...]]:
    """Return the shapes of one of our parameters in their model, one for each of the place's names."""
    rows: Iterable[int] = heads.rows(shape[0]) if len(place.names) > 1 else shape[:1]
    shapes = [(one, *shape[1:]) for one in rows]
    return [tuple(reversed(one)) for one in shapes] if place.transposed else shapes


def to_theirs(place: Place, tensor: Tensor, heads: Heads) -> list[Tensor]:
    """Return one of our parameters as their tensors, contiguous, without a copy if nothing changes."""
    parts = [tensor]
    if place.blocked:
        of_group = heads.queries // heads.groups
        by_group = tensor.reshape(heads.groups, of_group + 2, -1, *tensor.shape[1:])
        kinds = by_group.split((of_group, 1, 1), dim=1)
        parts = [one.reshape(-1, *tensor.shape[1:]) for one in kinds]
        if len(place.names) == 1:
            parts = [torch.cat(parts)]
    return [(one.t() if place.transposed else one).contiguous() for one in parts]


def to_ours(place: Place, tensors: Sequence[Tensor], heads: Heads) -> Tensor:
    """Invert `to_theirs`, bit for bit."""
    parts = [one.t() if place.transposed else one for one in tensors]
    if not place.blocked:
        return parts[0].contiguous()
    rest = parts[0].shape[1:]
    if len(parts) == 1:
        parts = list(parts[0].split(heads.rows(len(parts[0]))))
    head = len(parts[0]) // heads.queries
    return torch.cat([one.reshape(heads.groups, -1, head, *rest) for one in parts], dim=1).reshape(-1, *rest)
