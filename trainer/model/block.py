"""One transformer block: LayerNorm, attention, LayerNorm, MLP, each pair added to the residual stream."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.model.attention import SelfAttention
from trainer.model.dropout import DropoutClock, dropout
from trainer.model.weights import LayerNorm, LayerWeights
from trainer.parallel.process_groups import Parallel
from trainer.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import block_parameters


class MLP(nn.Module):
    """x_bsh -> ffn -> GeLU -> x_bsh."""

    def __init__(self, shape: ModelShape, parallel: Parallel, weights: LayerWeights) -> None:
        super().__init__()
        self.approximate = "tanh" if shape.tanh_gelu else "none"
        self.dense_h_to_4h = ColumnParallelLinear(*weights.pair("mlp.dense_h_to_4h"), parallel)
        self.dense_4h_to_h = RowParallelLinear(*weights.pair("mlp.dense_4h_to_h"), parallel)

    def forward(self, x_bsh: Tensor) -> Tensor:
        """x_bsh -> out_bsh, both whole on every tensor-parallel rank."""
        wide = self.dense_h_to_4h(x_bsh)
        out_bsh: Tensor = self.dense_4h_to_h(nn.functional.gelu(wide, approximate=self.approximate))
        return out_bsh


class TransformerBlock(nn.Module):
    """`layer` counts from 0 over the whole model. DeepSpeed finds blocks by the word transformer in the class name."""

    def __init__(self, shape: ModelShape, layer: int, parallel: Parallel, clock: DropoutClock) -> None:
        super().__init__()
        self.shape, self.layer, self.clock = shape, layer, clock
        weights, epsilon = LayerWeights(block_parameters(shape, layer), shape, parallel), shape.layernorm_epsilon
        self.input_layernorm = LayerNorm(*weights.pair("input_layernorm"), epsilon)
        self.self_attention = SelfAttention(shape, layer, parallel, clock, weights)
        self.post_attention_layernorm = LayerNorm(*weights.pair("post_attention_layernorm"), epsilon)
        self.mlp = MLP(shape, parallel, weights)

    def forward(self, x_bsh: Tensor) -> Tensor:
        """x_bsh -> x_bsh, the residual stream after this block."""
        normed = self.input_layernorm(x_bsh)
        residual = normed if self.shape.residual_after_layernorm else x_bsh
        x_bsh = residual + self._dropped(self.self_attention(normed), "attention output")
        normed = self.post_attention_layernorm(x_bsh)
        residual = normed if self.shape.residual_after_layernorm else x_bsh
        return residual + self._dropped(self.mlp(normed), "mlp output")

    def _dropped(self, x_bsh: Tensor, spot: str) -> torch.Tensor:
        return dropout(x_bsh, self.shape.hidden_dropout, self.training, self.clock, self.layer, spot)
