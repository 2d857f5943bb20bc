"""What a model is, apart from where it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.recipe.options import Options
from trainer.recipe.precision import precision_of
from trainer.recipe.vocabulary import Vocabulary


@dataclass(frozen=True)
class ModelShape:
    """Sizes and choices of one GPT: all that decides its weights, and what is done with them."""

    layers: int
    hidden: int
    ffn_hidden: int
    heads: int
    tokens: int  # of the vocabulary
    vocabulary: int  # rows of the word embedding, padding included
    positions: int  # rows of learned position embeddings; 0 with ALiBi
    embedding_layernorm: bool
    residual_after_layernorm: bool
    tanh_gelu: bool
    layernorm_epsilon: float
    attention_dropout: float
    hidden_dropout: float
    init_std: float
    seed: int
    precision: str  # fp32, bf16 or fp16

    @classmethod
    def of(cls, options: Mapping[str, Any], vocabulary: Vocabulary) -> ModelShape:
        """The shape that options ask for, with those that follow from others filled in (`parse`, `from_tables`)."""
        learned = options["position_embedding_type"] == "absolute"
        return cls(
            layers=options["num_layers"],
            hidden=options["hidden_size"],
            ffn_hidden=options["ffn_hidden_size"],
            heads=options["num_attention_heads"],
            tokens=vocabulary.tokens,
            vocabulary=vocabulary.rows,
            positions=options["max_position_embeddings"] if learned else 0,
            embedding_layernorm=options["embed_layernorm"],
            residual_after_layernorm=options["apply_residual_connection_post_layernorm"],
            tanh_gelu=options["openai_gelu"] or not options["no_bias_gelu_fusion"],
            layernorm_epsilon=options["layernorm_epsilon"],
            attention_dropout=options["attention_dropout"],
            hidden_dropout=options["hidden_dropout"],
            init_std=options["init_method_std"],
            seed=options["seed"],
            precision=precision_of(options),
        )

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> ModelShape:
        """A shape whose weights have the names and sizes of those that `facts` describe; the rest by default."""
        options = {name: value for name, value in facts.items() if name != "padded_vocab_size"}
        rows = facts["padded_vocab_size"]
        return cls.of(Options(options), Vocabulary(facts.get("vocab_size") or rows, rows))

    def facts(self) -> dict[str, Any]:
        """What decides the names and sizes of the weights, by options' names: a manifest's `model`."""
        return {
            "num_layers": self.layers,
            "hidden_size": self.hidden,
            "num_attention_heads": self.heads,
            "ffn_hidden_size": self.ffn_hidden,
            "vocab_size": self.tokens,
            "padded_vocab_size": self.vocabulary,
            "position_embedding_type": "alibi" if self.alibi else "absolute",
            "max_position_embeddings": self.positions or None,
            "embed_layernorm": self.embedding_layernorm,
        }

    @property
    def alibi(self) -> bool:
        """Whether attention sees positions by ALiBi; else they are learned."""
        return self.positions == 0

    @property
    def head_size(self) -> int:
        """Width of one head; the options' rules hold heads x head size to the hidden size."""
        return self.hidden // self.heads

    @property
    def output_init_std(self) -> float:
        """Standard deviation of what writes into the residual stream: std / sqrt(2 L), as in Megatron-LM."""
        return self.init_std / math.sqrt(2 * self.layers)
