"""What a model is, apart from where it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from trainer.recipe.options import Options


@dataclass(frozen=True)
class ModelShape:
    """Sizes and choices of one GPT. `vocabulary` is the padded one."""

    layers: int
    hidden: int
    ffn_hidden: int
    heads: int
    head_size: int
    vocabulary: int
    positions: int
    alibi: bool
    embedding_layernorm: bool
    residual_after_layernorm: bool
    tanh_gelu: bool
    layernorm_epsilon: float
    attention_dropout: float
    hidden_dropout: float
    init_std: float
    seed: int
    dtype: torch.dtype

    @property
    def output_init_std(self) -> float:
        """Standard deviation of what writes into the residual stream: std / sqrt(2 L), as in Megatron-LM."""
        return self.init_std / math.sqrt(2 * self.layers)

    @classmethod
    def of(cls, options: Options, padded_vocab_size: int) -> ModelShape:
        return cls(
            layers=options.num_layers,
            hidden=options.hidden_size,
            ffn_hidden=options.ffn_hidden_size,
            heads=options.num_attention_heads,
            head_size=options.kv_channels,
            vocabulary=padded_vocab_size,
            positions=options.max_position_embeddings,
            alibi=options.position_embedding_type == "alibi",
            embedding_layernorm=options.embed_layernorm,
            residual_after_layernorm=options.apply_residual_connection_post_layernorm,
            tanh_gelu=options.openai_gelu or not options.no_bias_gelu_fusion,
            layernorm_epsilon=options.layernorm_epsilon,
            attention_dropout=options.attention_dropout,
            hidden_dropout=options.hidden_dropout,
            init_std=options.init_method_std,
            seed=options.seed,
            dtype=torch.bfloat16 if options.bf16 else torch.float16 if options.fp16 else torch.float32,
        )
