"""The shape of a model. Pure, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.recipe.model_options import (
    YARN,
    RotaryScaling,
    Vocabulary,
    has_tanh_gelu,
    precision_of,
    rotary_scaling,
    turned_numbers,
    window_of,
)
from trainer.recipe.options import Options


@dataclass(frozen=True)
class ModelShape:
    """The sizes and choices of one GPT: everything that decides its weights and their use."""

    layers: int
    hidden: int
    ffn_hidden: int
    heads: int
    tokens: int  # of the vocabulary
    vocabulary: int  # rows of the word embedding, with padding
    positions: int  # rows of learned position embeddings; 0 if positions are not learned
    embedding_layernorm: bool
    residual_after_layernorm: bool
    tanh_gelu: bool
    layernorm_epsilon: float
    attention_dropout: float
    hidden_dropout: float
    init_std: float
    seed: int
    precision: str  # fp32, bf16 or fp16
    rms_norm: bool = False  # instead of every LayerNorm
    linear_biases: bool = True  # of all linear layers
    qkv_biases: bool = True  # of those that compute query, key and value
    tied: bool = True  # the word embedding is also the output layer
    alibi: bool = False  # ALiBi's positions in attention
    rotary_size: int = 0  # numbers of a head that rotary positions rotate; 0 without
    rotary_base: float = 10000.0
    rotary_scaling: RotaryScaling | None = None
    gate: str | None = None  # of the MLP: one of GATES; None: a plain one with GeLU
    key_value_heads: int | None = None  # fewer than heads, which share them; None: one per head
    query_key_norm: bool = False  # a norm of each head's query and key
    norms_about_zero: bool = False  # weights of norms are stored less 1
    embedding_scale: float = 1.0  # of the word embedding on its way in
    window: int | None = None  # keys that a token attends to, its own included; None: all up to its own
    splits_documents: bool = False  # a token attends to its own document alone
    resets_positions: bool = False  # in each document
    kv_channels: int | None = None  # width of a head; None: hidden / heads

    @classmethod
    def of(cls, options: Mapping[str, Any], vocabulary: Vocabulary) -> ModelShape:
        """Return the shape of complete options, with derived values filled in (`parse`, `from_tables`)."""
        learned, heads = options["position_embedding_type"] == "absolute", options["num_attention_heads"]
        groups, width = options["num_query_groups"], options["kv_channels"]
        return cls(
            layers=options["num_layers"],
            hidden=options["hidden_size"],
            ffn_hidden=options["ffn_hidden_size"],
            heads=heads,
            tokens=vocabulary.tokens,
            vocabulary=vocabulary.rows,
            positions=options["max_position_embeddings"] if learned else 0,
            embedding_layernorm=options["embed_layernorm"],
            residual_after_layernorm=options["apply_residual_connection_post_layernorm"],
            tanh_gelu=has_tanh_gelu(options),
            layernorm_epsilon=options["layernorm_epsilon"],
            attention_dropout=options["attention_dropout"],
            hidden_dropout=options["hidden_dropout"],
            init_std=options["init_method_std"],
            seed=options["seed"],
            precision=precision_of(options),
            rms_norm=options["normalization"] == "RMSNorm",
            linear_biases=not options["disable_bias_linear"],
            qkv_biases=not options["disable_bias_linear"] or options["add_qkv_bias"],
            tied=not options["untie_embeddings_and_output_weights"],
            alibi=options["position_embedding_type"] == "alibi",
            rotary_size=turned_numbers(options),
            rotary_base=options["rotary_base"],
            rotary_scaling=rotary_scaling(options),
            gate=options["glu_activation"],
            key_value_heads=None if groups == heads else groups,
            query_key_norm=options["qk_layernorm"],
            norms_about_zero=options["apply_layernorm_1p"],
            embedding_scale=options["embedding_scale"],
            window=window_of(options),
            splits_documents=options["reset_attention_mask"],
            resets_positions=options["reset_position_ids"],
            kv_channels=None if not width or width * heads == options["hidden_size"] else width,
        )

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> ModelShape:
        """Return a shape whose weights have the names and sizes of `facts`. The rest has defaults."""
        options = {name: value for name, value in facts.items() if name != "padded_vocab_size"}
        rows = facts["padded_vocab_size"]
        return cls.of(Options(options), Vocabulary(facts.get("vocab_size") or rows, rows))

    def facts(self) -> dict[str, Any]:
        """Return the facts that decide the names and sizes of the weights, for a manifest's `model`.

        Later additions are there only if the model has them, so other models are described as before.
        """
        later = {
            "normalization": "RMSNorm" if self.rms_norm else None,
            "disable_bias_linear": not self.linear_biases,
            "add_qkv_bias": self.qkv_biases and not self.linear_biases,
            "untie_embeddings_and_output_weights": not self.tied,
            "glu_activation": self.gate,
            "num_query_groups": self.key_value_heads,
            "qk_layernorm": self.query_key_norm,
            "kv_channels": self.kv_channels,
        }
        return {
            "num_layers": self.layers,
            "hidden_size": self.hidden,
            "num_attention_heads": self.heads,
            "ffn_hidden_size": self.ffn_hidden,
            "vocab_size": self.tokens,
            "padded_vocab_size": self.vocabulary,
            "position_embedding_type": self.position_kind,
            "max_position_embeddings": self.positions or None,
            "embed_layernorm": self.embedding_layernorm,
            **{name: value for name, value in later.items() if value},
        }

    @property
    def position_kind(self) -> str:
        """The kind of positions, as in `--position-embedding-type`."""
        if self.positions or self.alibi:
            return "absolute" if self.positions else "alibi"
        return YARN if self.rotary_scaling and self.rotary_scaling.kind == YARN else "rope"

    @property
    def groups(self) -> int:
        """The number of key and value heads: all heads, unless several share them."""
        return self.key_value_heads or self.heads

    @property
    def head_size(self) -> int:
        """The width of one head."""
        return self.kv_channels or self.hidden // self.heads

    @property
    def attended(self) -> int:
        """The width of attention's output: all heads together."""
        return self.heads * self.head_size

    @property
    def output_init_std(self) -> float:
        """The standard deviation of weights that write into the residual stream: std / sqrt(2 L), as in Megatron-LM."""
        return self.init_std / math.sqrt(2 * self.layers)
