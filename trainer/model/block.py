"""One transformer block: LayerNorm, attention, LayerNorm, MLP, each pair added to the residual stream."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from trainer.model.attention import SelfAttention
from trainer.model.dropout import DropoutClock, dropout
from trainer.model.weights import LayerWeights, Norm
from trainer.parallel.process_groups import Parallel
from trainer.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear, side_by_side
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import block_parameters


class MLP(nn.Module):
    """x_bsh -> ffn -> GeLU -> x_bsh, or with a gate x_bsh -> activation(gate) * ffn -> x_bsh."""

    def __init__(self, shape: ModelShape, parallel: Parallel, weights: LayerWeights) -> None:
        super().__init__()
        self.activation = _activation(shape)
        self.gate = ColumnParallelLinear(*weights.pair("mlp.gate"), parallel) if shape.gate else None
        self.dense_h_to_4h = ColumnParallelLinear(*weights.pair("mlp.dense_h_to_4h"), parallel)
        self.dense_4h_to_h = RowParallelLinear(*weights.pair("mlp.dense_4h_to_h"), parallel)

    def forward(self, x_bsh: Tensor) -> Tensor:
        """x_bsh -> out_bsh: both whole on every tensor-parallel rank, or slices of the sequence."""
        if self.gate is None:
            wide = self.activation(self.dense_h_to_4h(x_bsh))
        else:
            wide, gate = side_by_side(x_bsh, [self.dense_h_to_4h, self.gate])
            wide = self.activation(gate) * wide
        out_bsh: Tensor = self.dense_4h_to_h(wide)
        return out_bsh


def _activation(shape: ModelShape) -> Callable[[Tensor], Tensor]:
    """What the MLP's width goes through, or its gate if it has one."""
    gelu = functools.partial(nn.functional.gelu, approximate="tanh" if shape.tanh_gelu else "none")
    by_gate: dict[str, Callable[[Tensor], Tensor]] = {
        "swiglu": nn.functional.silu,
        "geglu": gelu,
        "reglu": nn.functional.relu,
        "liglu": nn.Identity(),
    }
    return by_gate[shape.gate] if shape.gate else gelu


class TransformerBlock(nn.Module):
    """`layer` counts from 0 over the whole model. DeepSpeed finds blocks by the word transformer in the class name."""

    def __init__(
        self,
        shape: ModelShape,
        layer: int,
        parallel: Parallel,
        clock: DropoutClock,
        recompute_attention: bool = False,
    ) -> None:
        super().__init__()
        self.shape, self.layer, self.clock, self.part = shape, layer, clock, parallel.sequence_part
        weights = LayerWeights(block_parameters(shape, layer), shape, parallel)
        self.input_layernorm = Norm(shape, weights, "input_layernorm")
        self.self_attention = SelfAttention(shape, layer, parallel, clock, weights, recompute_attention)
        self.post_attention_layernorm = Norm(shape, weights, "post_attention_layernorm")
        self.mlp = MLP(shape, parallel, weights)

    def forward(self, x_bsh: Tensor) -> Tensor:
        """x_bsh -> x_bsh, the residual stream after this block, or this rank's slice of it."""
        normed = self.input_layernorm(x_bsh)
        residual = normed if self.shape.residual_after_layernorm else x_bsh
        x_bsh = residual + self._dropped(self.self_attention(normed), "attention output")
        normed = self.post_attention_layernorm(x_bsh)
        residual = normed if self.shape.residual_after_layernorm else x_bsh
        return residual + self._dropped(self.mlp(normed), "mlp output")

    def _dropped(self, x_bsh: Tensor, spot: str) -> torch.Tensor:
        return dropout(x_bsh, self.shape.hidden_dropout, self.training, self.clock, self.layer, spot, self.part)
