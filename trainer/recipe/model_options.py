"""Options of the model that follow from others: precision, recomputation, the padded vocabulary. Pure, no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.recipe.layout import listed_stages

#: Rotary positions that are stretched, in two ways.
LLAMA3, YARN = "llama3", "yarn"
#: The bounds of the stretch, in turns of a pair of numbers within the original length: pairs that turn more often than
#: the larger one are kept, and those that turn less often than the smaller one are stretched in full.
LLAMA3_TURNS, YARN_TURNS = (1.0, 4.0), (1.0, 32.0)
#: Values of `--position-embedding-type`. `rope` and `rotary` mean the same.
POSITIONS = ("absolute", "alibi", "rope", "rotary", YARN)
_ROTARY = POSITIONS[2:]
#: Values of `--glu-activation`: SiLU, GeLU, ReLU, or the plain gate (Shazeer, arXiv 2002.05202).
GATES = ("swiglu", "geglu", "reglu", "liglu")
ROTARY_BASE, ROTARY_PERCENT = 10000.0, 1.0
#: Llama 3.1's stretch of rotary positions.
SCALING_FACTOR, ORIGINAL_LENGTH = 8.0, 8192
#: A dropout mask compares 16 bits with its probability, which is a multiple of 1 / this.
DROPOUT_LEVELS = 1 << 16
# Megatron-LM's width for --swiglu: two thirds of the plain MLP's, for the same number of weights, rounded to this.
_FFN_MULTIPLE = 64


def with_model_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's options that follow from `given` ones. Given ones stay."""
    values = dict(given)
    hidden, heads = values.get("hidden_size"), values.get("num_attention_heads")
    if hidden:
        narrower = max(8 * hidden // 3 // _FFN_MULTIPLE, 1) * _FFN_MULTIPLE
        values.setdefault("ffn_hidden_size", narrower if values.get("swiglu") else 4 * hidden)
        if heads and hidden % heads == 0:
            values.setdefault("kv_channels", hidden // heads)
    if values.get("seq_length"):
        values.setdefault("max_position_embeddings", values["seq_length"])
    if stages := listed_stages(values):
        values.setdefault("pp_partition_method", stages)
    if values.get("swiglu"):
        values.setdefault("glu_activation", "swiglu")
    if values.get("group_query_attention"):
        values.setdefault("num_query_groups", 1)
    if values.get("norm_epsilon") is not None:
        values.setdefault("layernorm_epsilon", values["norm_epsilon"])
    return values


def model_errors(options: Mapping[str, Any]) -> list[str]:
    """Return the contradictions between the model's options, independent of the layout. Both values are named."""
    errors = [*_width_errors(options), *_key_value_errors(options), *_rotary_errors(options), *_dropout_errors(options)]
    positions, length = options["max_position_embeddings"], options["seq_length"]
    if positions is not None and length is not None and positions < length:
        errors.append(f"--max-position-embeddings {positions} is smaller than --seq-length {length}")
    epsilon, same = options["layernorm_epsilon"], options["norm_epsilon"]
    if same not in (None, epsilon):
        errors.append(f"--norm-epsilon {same:g} with --layernorm-epsilon {epsilon:g}: they are the same, give one")
    try:
        window_of(options)
    except ValueError as error:
        errors.append(str(error))
    if options["reset_position_ids"] and options["position_embedding_type"] == "alibi":
        errors.append("--reset-position-ids with --position-embedding-type alibi: it has distances alone, remove it")
    if options["swiglu"] and options["glu_activation"] != "swiglu":
        errors.append(f"--swiglu with --glu-activation {options['glu_activation']}: choose one")
    return errors


def is_rotary(options: Mapping[str, Any]) -> bool:
    """Return True if attention rotates queries and keys by position."""
    return options["position_embedding_type"] in _ROTARY


def turned_numbers(options: Mapping[str, Any]) -> int:
    """Return the numbers of a head that rotary positions rotate; 0 without."""
    return int(head_size_of(options) * options["rotary_percent"]) if is_rotary(options) else 0


@dataclass(frozen=True)
class RotaryScaling:
    """A stretch of rotary positions, by a factor, beyond the length of the original training."""

    kind: str  # LLAMA3 or YARN
    factor: float
    original_length: int

    def __str__(self) -> str:
        """Return the scaling as text."""
        return f"{self.kind} by {self.factor:g} from {self.original_length}"


def rotary_scaling(options: Mapping[str, Any]) -> RotaryScaling | None:
    """Return the stretch of rotary positions, if there is one."""
    original = options["original_max_position_embeddings"]
    if options["position_embedding_type"] == YARN:
        return RotaryScaling(YARN, options["rotary_scaling_factor"], original)
    return RotaryScaling(LLAMA3, options["rope_scaling_factor"], original) if options["use_rope_scaling"] else None


_WINDOW = re.compile(r"\(?\s*(-1|[0-9]{1,9})\s*,\s*0\s*\)?")


def window_of(options: Mapping[str, Any]) -> int | None:
    """Return the number of keys that a token attends to, its own included; None: all up to its own.

    Raises ValueError, one line, if the option has another form.
    """
    text = options["window_size"]
    if text is None:
        return None
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise ValueError(f"--window-size {text}: give the keys before a token's own and 0, such as 4095,0")
    return int(match[1]) + 1 or None


def separates_documents(options: Mapping[str, Any]) -> bool:
    """Return True if the model has to know where the documents of a sample begin."""
    return bool(options["reset_attention_mask"] or options["reset_position_ids"])


def masks_attention(options: Mapping[str, Any]) -> bool:
    """Return True if a token may attend to fewer keys than all up to its own."""
    return options["window_size"] is not None or bool(options["reset_attention_mask"])


def head_size_of(options: Mapping[str, Any]) -> int:
    """Return the width of one head."""
    return int(options["kv_channels"] or options["hidden_size"] // options["num_attention_heads"])


def has_tanh_gelu(options: Mapping[str, Any]) -> bool:
    """Return True for GeLU's tanh form, False for the exact one."""
    return bool(options["openai_gelu"] or not options["no_bias_gelu_fusion"])


def uses_gelu(options: Mapping[str, Any]) -> bool:
    """Return True if the form of GeLU matters."""
    return options["glu_activation"] in (None, "geglu")


def _width_errors(options: Mapping[str, Any]) -> list[str]:
    hidden, heads, head_size = options["hidden_size"], options["num_attention_heads"], options["kv_channels"]
    if hidden is None or heads is None:
        return []
    if hidden % heads and head_size is None:
        return [f"--hidden-size {hidden} is not divisible by --num-attention-heads {heads}: give --kv-channels"]
    return []


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
        ] + ["--use-rope-scaling without --position-embedding-type rope: give both"] * options["use_rope_scaling"]
    if (kind == YARN) != (options["rotary_scaling_factor"] > 1):
        return [
            "--position-embedding-type yarn and a --rotary-scaling-factor above 1 go together: give both, or neither"
        ]
    if kind == YARN and options["use_rope_scaling"]:
        return ["--use-rope-scaling with --position-embedding-type yarn: two ways to stretch positions, choose one"]
    hidden, heads = options["hidden_size"], options["num_attention_heads"]
    if not 0 < share <= 1:
        return [f"--rotary-percent {share:g}: it is a share of each head, above 0 and at most 1"]
    if hidden is None or heads is None or not head_size_of(options):
        return []
    turned = turned_numbers(options)
    if turned == 0 or turned % 2:
        return [
            f"--position-embedding-type {kind} turns pairs of numbers, and --rotary-percent {share:g} of a head of "
            f"{head_size_of(options)} (--kv-channels, or --hidden-size {hidden} / --num-attention-heads {heads}) are "
            f"{turned}"
        ]
    return []


def _dropout_errors(options: Mapping[str, Any]) -> list[str]:
    least, most = 1 / DROPOUT_LEVELS, 1 - 1 / DROPOUT_LEVELS
    return [
        f"--{key.replace('_', '-')} {options[key]}: masks have 16 bits: give 0, or from {least:.6g} to {most:.6g}"
        for key in ("attention_dropout", "hidden_dropout")
        if options[key] and not 0 < round(options[key] * DROPOUT_LEVELS) < DROPOUT_LEVELS
    ]


NONE, ATTENTION, BLOCK = "none", "attention", "block"
#: Values of `--recompute`, from the most memory to the least. A training's options select one of them.
RECOMPUTE = (NONE, ATTENTION, BLOCK)
#: Older names of `--recompute block`.
_OF_BLOCKS = ("checkpoint_activations", "deepspeed_activation_checkpointing")
_SPLIT = ("partition_activations", "distribute_checkpointed_activations")


def recomputed(options: Mapping[str, Any]) -> str:
    """Return one of RECOMPUTE, from `--recompute` or its older names.

    `attention`: everything between the product that makes queries, keys and values and the one after attention, as
    selected by Korthikanti et al., arXiv 2205.05198. `block`: everything in each block except its input.
    """
    chosen: str | None = options["recompute"]
    if chosen is not None:
        return chosen
    return BLOCK if any(options[key] for key in _OF_BLOCKS) else NONE


def asks_to_recompute(arguments: Sequence[str]) -> bool:
    """Return True if an unparsed command line has any option of recomputation."""
    names = {option_name(key) for key in ("recompute", *_OF_BLOCKS)}
    return any(word.partition("=")[0] in names for word in arguments)


def recomputation_errors(options: Mapping[str, Any]) -> list[str]:
    """Return the contradictions between options of recomputation. Both options are named."""
    chosen = options["recompute"]
    errors = [
        f"--recompute {chosen} with {option_name(key)}, which means --recompute block: give one of them"
        for key in _OF_BLOCKS
        if options[key] and chosen not in (None, BLOCK)
    ]
    if recomputed(options) == BLOCK:
        return errors
    return errors + [
        f"{option_name(key)} needs --checkpoint-activations: without it nothing is recomputed"
        for key in _SPLIT
        if options[key]
    ]


def option_name(key: str) -> str:
    """Return an option's name on the command line."""
    return "--" + key.replace("_", "-")


@dataclass(frozen=True)
class Vocabulary:
    """The numbers of tokens and of rows of the word embedding, of which the first `tokens` are used."""

    tokens: int
    rows: int

    @classmethod
    def of(cls, tokens: int, options: Mapping[str, Any]) -> Vocabulary:
        """Return the vocabulary of `tokens` tokens, padded by the options. Raises ValueError as `_padded` does."""
        return cls(tokens, _padded(tokens, options))

    @classmethod
    def unpadded(cls, tokens: int) -> Vocabulary:
        """Return a vocabulary with as many rows as tokens."""
        return cls(tokens, tokens)


def _padded(vocab_size: int, options: Mapping[str, Any]) -> int:
    """Return the rows of the word embedding for a vocabulary of `vocab_size` tokens.

    It is exactly `pad_vocab_size_to` if given, else the next multiple of `make_vocab_size_divisible_by` x TP. Raises
    ValueError (one line) if the given size is too small or cannot be divided.
    """
    wanted: int | None = options["pad_vocab_size_to"]
    if wanted is None:
        multiple: int = options["make_vocab_size_divisible_by"] * options["tensor_model_parallel_size"]
        return -(-vocab_size // multiple) * multiple
    if wanted < vocab_size:
        raise ValueError(
            f"--pad-vocab-size-to {wanted} is smaller than the vocabulary, {vocab_size}: give a larger one"
        )
    if wrong := indivisible_padding(options):
        raise ValueError(wrong)
    return wanted


def indivisible_padding(options: Mapping[str, Any]) -> str | None:
    """Return the number that does not divide the given size, in one line; None if it divides or none is given."""
    wanted = options["pad_vocab_size_to"]
    for key in ("make_vocab_size_divisible_by", "tensor_model_parallel_size"):
        if wanted is not None and wanted % options[key]:
            return f"--pad-vocab-size-to {wanted} is not divisible by --{key.replace('_', '-')} {options[key]}"
    return None


def precision_of(options: Mapping[str, Any]) -> str:
    """Return `bf16`, `fp16` or `fp32`, as in manifests."""
    return "bf16" if options["bf16"] else "fp16" if options["fp16"] else "fp32"


def is_half(precision: str) -> bool:
    """Return True if a weight of the model takes 2 bytes, False for 4."""
    return precision != "fp32"
