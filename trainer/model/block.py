"""One transformer block: LayerNorm, attention, LayerNorm, MLP, each pair added to the residual stream."""

from __future__ import annotations

from torch import Tensor, nn

from trainer.kernels.activation import GateActivation, bias_gelu, gated
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
        self.tanh, self.activation = shape.tanh_gelu, _gate_activation(shape)
        self.kernels = parallel.operations.activations
        self.gate = ColumnParallelLinear(*weights.pair("mlp.gate"), parallel) if shape.gate else None
        self.dense_h_to_4h = ColumnParallelLinear(*weights.pair("mlp.dense_h_to_4h"), parallel)
        self.dense_4h_to_h = RowParallelLinear(*weights.pair("mlp.dense_4h_to_h"), parallel)

    def forward(self, x_bsh: Tensor) -> Tensor:
        """x_bsh -> out_bsh: both whole on every tensor-parallel rank, or slices of the sequence."""
        if self.gate is None:
            wide = self._by_gelu(x_bsh)
        else:
            wide, gate = side_by_side(x_bsh, [self.dense_h_to_4h, self.gate])
            wide = gated(gate, wide, self.activation, self.kernels)
        out_bsh: Tensor = self.dense_4h_to_h(wide)
        return out_bsh

    def _by_gelu(self, x_bsh: Tensor) -> Tensor:
        """The width after GeLU; kernels add the bias on their way, and sum its gradient on their way back."""
        if self.kernels is None:
            return bias_gelu(self.dense_h_to_4h(x_bsh), None, self.tanh, None)
        wide, bias = self.dense_h_to_4h.without_bias(x_bsh), self.dense_h_to_4h.bias
        return bias_gelu(wide, bias, self.tanh, self.kernels)


def _gate_activation(shape: ModelShape) -> GateActivation:
    """What a gate goes through; of no use without one."""
    gelu: GateActivation = "gelu_tanh" if shape.tanh_gelu else "gelu_erf"
    by_gate: dict[str, GateActivation] = {"swiglu": "silu", "geglu": gelu, "reglu": "relu", "liglu": "none"}
    return by_gate.get(shape.gate or "", gelu)


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
        self.residuals = parallel.operations.residuals
        weights = LayerWeights(block_parameters(shape, layer), shape, parallel)
        self.input_layernorm = Norm(shape, weights, "input_layernorm")
        self.self_attention = SelfAttention(shape, layer, parallel, clock, weights, recompute_attention)
        self.post_attention_layernorm = Norm(shape, weights, "post_attention_layernorm")
        self.mlp = MLP(shape, parallel, weights)

    def forward(self, x_bsh: Tensor) -> Tensor:
        """x_bsh -> x_bsh, the residual stream after this block, or this rank's slice of it."""
        normed = self.input_layernorm(x_bsh)
        residual = normed if self.shape.residual_after_layernorm else x_bsh
        x_bsh = self._added(residual, self.self_attention(normed), self.self_attention.dense, "attention output")
        normed = self.post_attention_layernorm(x_bsh)
        residual = normed if self.shape.residual_after_layernorm else x_bsh
        return self._added(residual, self.mlp(normed), self.mlp.dense_4h_to_h, "mlp output")

    def _added(self, residual_bsh: Tensor, x_bsh: Tensor, last: RowParallelLinear, spot: str) -> Tensor:
        """The residual stream with what a half of the block makes; `last` is the layer that x comes out of."""
        probability = self.shape.hidden_dropout
        dropped = dropped_at(spot, x_bsh, probability, self.training, self.clock, self.layer, self.part)
        return added(x_bsh, last.left_bias(), residual_bsh, dropped, self.residuals)
