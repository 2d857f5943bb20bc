"""Activations of the MLP: GeLU with its bias, or a gate's activation times the other half.

GeLU in its tanh form or by erf (Hendrycks and Gimpel, arXiv 1606.08415); gates after Shazeer, arXiv 2002.05202.
The backward pass computes the activation again from its input; nothing else is kept.

Shapes: r rows, f width.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn


def as_rows(x: Tensor) -> Tensor:
    """Return x [..., h] as [r, h]; the same memory if it is contiguous."""
    return x.reshape(-1, x.shape[-1]).contiguous()


#: What a gate goes through: silu in SwiGLU, gelu in GEGLU (tanh form or erf), relu in ReGLU, nothing in LiGLU.
GateActivation = Literal["silu", "gelu_tanh", "gelu_erf", "relu", "none"]
#: The numbers of these in csrc/cpu and csrc/cuda.
NUMBERS: dict[GateActivation, int] = {"silu": 0, "gelu_tanh": 1, "gelu_erf": 2, "relu": 3, "none": 4}


def gate_activation(gate: str | None, tanh: bool) -> GateActivation:
    """Return the activation of a gate, with GeLU in the model's form; unused without a gate."""
    gelu: GateActivation = "gelu_tanh" if tanh else "gelu_erf"
    by_gate: dict[str, GateActivation] = {"swiglu": "silu", "geglu": gelu, "reglu": "relu", "liglu": "none"}
    return by_gate.get(gate or "", gelu)


class ActivationKernels(Protocol):
    """Kernels for activations. Tensors are contiguous and of one dtype."""

    def bias_gelu(self, x_rf: Tensor, bias_f: Tensor | None, tanh: bool) -> Tensor:
        """gelu(x + bias)."""

    def bias_gelu_backward(
        self, gradient_rf: Tensor, x_rf: Tensor, bias_f: Tensor | None, tanh: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of x and, where there is one, of the bias: summed in fp32 in an order that the shape alone says."""

    def gated(self, gate_rf: Tensor, wide_rf: Tensor, activation: GateActivation) -> Tensor:
        """activation(gate) * wide."""

    def gated_backward(
        self, gradient_rf: Tensor, gate_rf: Tensor, wide_rf: Tensor, activation: GateActivation
    ) -> tuple[Tensor, Tensor]:
        """Gradients of gate and wide."""


def bias_gelu(x: Tensor, bias_f: Tensor | None, tanh: bool, kernels: ActivationKernels | None) -> Tensor:
    """gelu(x + bias) of x [..., f]; without a bias gelu(x)."""
    if kernels is None:
        return nn.functional.gelu(x if bias_f is None else x + bias_f, approximate="tanh" if tanh else "none")
    activated: Tensor = _BiasGelu.apply(x, bias_f, tanh, kernels)
    return activated


def gated(gate: Tensor, wide: Tensor, activation: GateActivation, kernels: ActivationKernels | None) -> Tensor:
    """activation(gate) * wide, both [..., f]."""
    if kernels is None:
        return _activated(gate, activation) * wide
    product: Tensor = _Gated.apply(gate, wide, activation, kernels)
    return product


def _activated(gate: Tensor, activation: GateActivation) -> Tensor:
    if activation == "silu":
        return nn.functional.silu(gate)
    if activation == "relu":
        return nn.functional.relu(gate)
    if activation == "none":
        return gate
    return nn.functional.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none")


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, tanh: bool, kernels: ActivationKernels) -> Tensor:
        x_rf = as_rows(x)
        ctx.save_for_backward(x_rf, bias)
        ctx.kernels, ctx.tanh = kernels, tanh
        return kernels.bias_gelu(x_rf, bias, tanh).view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x_rf, bias = ctx.saved_tensors
        of_x, of_bias = ctx.kernels.bias_gelu_backward(as_rows(gradients[0]), x_rf, bias, ctx.tanh)
        return of_x.view(gradients[0].shape), of_bias, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, wide: Tensor, activation: GateActivation, kernels: ActivationKernels) -> Tensor:
        gate_rf, wide_rf = as_rows(gate), as_rows(wide)
        ctx.save_for_backward(gate_rf, wide_rf)
        ctx.kernels, ctx.activation = kernels, activation
        return kernels.gated(gate_rf, wide_rf, activation).view(gate.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gate_rf, wide_rf = ctx.saved_tensors
        of_gate, of_wide = ctx.kernels.gated_backward(as_rows(gradients[0]), gate_rf, wide_rf, ctx.activation)
        shape = gradients[0].shape
        return of_gate.view(shape), of_wide.view(shape), None, None
