"""One transformer block: LayerNorm, attention, LayerNorm, MLP, each pair added to the residual stream."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainer.model.attention import SelfAttention
from trainer.model.dropout import DropoutClock, dropout
from trainer.model.shape import ModelShape
from trainer.parallel.process_groups import Parallel
from trainer.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear


def layernorm(shape: ModelShape) -> nn.LayerNorm:
    """A LayerNorm over the hidden size, whole on every tensor-parallel rank."""
    return nn.LayerNorm(shape.hidden, eps=shape.layernorm_epsilon, dtype=shape.dtype)


class MLP(nn.Module):
    """x_bsh -> ffn -> GeLU -> x_bsh."""

    def __init__(self, shape: ModelShape, layer: int, parallel: Parallel) -> None:
        super().__init__()
        self.approximate = "tanh" if shape.tanh_gelu else "none"
        name = f"layers.{layer}.mlp"
        common: dict[str, Any] = {"seed": shape.seed, "parallel": parallel, "dtype": shape.dtype}
        self.dense_h_to_4h = ColumnParallelLinear(
            f"{name}.dense_h_to_4h", shape.hidden, shape.ffn_hidden, shape.init_std, **common
        )
        self.dense_4h_to_h = RowParallelLinear(
            f"{name}.dense_4h_to_h", shape.ffn_hidden, shape.hidden, shape.output_init_std, **common
        )

    def forward(self, x_bsh: Tensor) -> Tensor:
        wide = self.dense_h_to_4h(x_bsh)
        out_bsh: Tensor = self.dense_4h_to_h(nn.functional.gelu(wide, approximate=self.approximate))
        return out_bsh


class TransformerBlock(nn.Module):
    """`layer` counts from 0 over the whole model. DeepSpeed finds blocks by the word transformer in the class name."""

    def __init__(self, shape: ModelShape, layer: int, parallel: Parallel, clock: DropoutClock) -> None:
        super().__init__()
        self.shape, self.layer, self.clock = shape, layer, clock
        self.input_layernorm = layernorm(shape)
        self.self_attention = SelfAttention(shape, layer, parallel, clock)
        self.post_attention_layernorm = layernorm(shape)
        self.mlp = MLP(shape, layer, parallel)

    def forward(self, x_bsh: Tensor) -> Tensor:
        normed = self.input_layernorm(x_bsh)
        residual = normed if self.shape.residual_after_layernorm else x_bsh
        x_bsh = residual + self._dropped(self.self_attention(normed), "attention output")
        normed = self.post_attention_layernorm(x_bsh)
        residual = normed if self.shape.residual_after_layernorm else x_bsh
        return residual + self._dropped(self.mlp(normed), "mlp output")

    def _dropped(self, x: Tensor, spot: str) -> torch.Tensor:
        return dropout(x, self.shape.hidden_dropout, self.training, self.clock, self.layer, spot)
