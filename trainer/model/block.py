"""One transformer block: LayerNorm, attention, LayerNorm, MLP, each pair added to the residual stream."""

from __future__ import annotations

from torch import Tensor, nn

from trainer.kernels.activation import bias_gelu, gate_activation, gated
from trainer.kernels.normalization import adds_before
from trainer.kernels.residual import added
from trainer.model.attention import SelfAttention
from trainer.model.dropout import DropoutClock, dropped_at
from trainer.model.weights import LayerWeights, Norm
from trainer.parallel.process_groups import Parallel
from trainer.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear, side_by_side
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import block_parameters


class MLP(nn.Module):
    """x_bsh -> ffn -> GeLU -> x_bsh, or with a gate x_bsh -> activation(gate) * ffn -> x_bsh."""

    def __init__(self, shape: ModelShape, parallel: Parallel, weights: LayerWeights) -> None:
        super().__init__()
        self.tanh, self.activation = shape.tanh_gelu, gate_activation(shape.gate, shape.tanh_gelu)
        self.kernels = parallel.operations.activations
        self.gate = ColumnParallelLinear(*weights.pair("mlp.gate"), parallel) if shape.gate else None
        self.dense_h_to_4h = ColumnParallelLinear(*weights.pair("mlp.dense_h_to_4h"), parallel)
        leaves_bias = parallel.operations.residuals is not None
        self.dense_4h_to_h = RowParallelLinear(*weights.pair("mlp.dense_4h_to_h"), parallel, leaves_bias)

    def forward(self, x_bsh: Tensor) -> Tensor:
        """x_bsh -> out_bsh: both whole on every tensor-parallel rank, or slices of the sequence."""
        if self.gate is not None:
            wide, through = side_by_side(x_bsh, [self.dense_h_to_4h, self.gate])
            active = gated(through, wide, self.activation, self.kernels)
        elif self.kernels is None:
            active = bias_gelu(self.dense_h_to_4h(x_bsh), None, self.tanh, None)
        else:  # kernels add the bias, and sum its gradient in the backward pass
            active = bias_gelu(self.dense_h_to_4h.without_bias(x_bsh), self.dense_h_to_4h.bias, self.tanh, self.kernels)
        out_bsh: Tensor = self.dense_4h_to_h(active)
        return out_bsh


class TransformerBlock(nn.Module):
    """One block. `layer` counts from 0 over the whole model.

    DeepSpeed finds blocks by the word transformer in the class name.
    """

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
        self.residuals = parallel.operations.residuals
        weights = LayerWeights(block_parameters(shape, layer), shape, parallel)
        self.input_layernorm = Norm(shape, weights, "input_layernorm")
        # A sum that the norm alone reads, as where the norm goes on as the residual, is worth no gradient of zeros.
        sums_in_norm = not shape.hidden_dropout and not shape.residual_after_layernorm
        self.sums_in_norm = sums_in_norm and adds_before(parallel.operations.norms)
        leaves_bias = self.residuals is not None and not self.sums_in_norm
        self.self_attention = SelfAttention(shape, layer, parallel, clock, weights, recompute_attention, leaves_bias)
        self.post_attention_layernorm = Norm(shape, weights, "post_attention_layernorm")
        self.mlp = MLP(shape, parallel, weights)

    def forward(self, x_bsh: Tensor) -> Tensor:
        """x_bsh -> x_bsh, the residual stream after this block, or this rank's slice of it."""
        normed = self.input_layernorm(x_bsh)
        residual = normed if self.shape.residual_after_layernorm else x_bsh
        x_bsh, normed = self._added_and_normed(residual, self.self_attention(normed))
        residual = normed if self.shape.residual_after_layernorm else x_bsh
        return self._added(residual, self.mlp(normed), self.mlp.dense_4h_to_h, "mlp output")

    def _added_and_normed(self, residual_bsh: Tensor, x_bsh: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual stream plus the attention's output, and its norm: in one pass if nothing lies between."""
        if self.sums_in_norm:
            return self.post_attention_layernorm.of_sum(x_bsh, residual_bsh)
        total = self._added(residual_bsh, x_bsh, self.self_attention.dense, "attention output")
        return total, self.post_attention_layernorm(total)

    def _added(self, residual_bsh: Tensor, x_bsh: Tensor, last: RowParallelLinear, spot: str) -> Tensor:
        """Return the residual stream plus the output of half of the block; `last` is the layer that computes x."""
        probability = self.shape.hidden_dropout
        dropped = dropped_at(spot, x_bsh, probability, self.training, self.clock, self.layer, self.part)
        return added(x_bsh, last.left_bias(), residual_bsh, dropped, self.residuals)
