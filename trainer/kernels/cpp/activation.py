"""Activations by `csrc/cpu/activation.cpp`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from trainer.kernels.activation import GateActivation
from trainer.kernels.cpp.calls import SIZE, TENSOR, Calls

# As the source numbers them.
_NUMBERS: dict[GateActivation, int] = {"silu": 0, "gelu_tanh": 1, "gelu_erf": 2, "relu": 3, "none": 4}


class CppActivations:
    """`ActivationKernels` of a CPU, fp32 and bf16. Results do not depend on the number of threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        sizes = [SIZE] * 3
        self._bias_gelu = Calls(library, "bias_gelu", [*[TENSOR] * 3, *sizes])
        self._bias_gelu_backward = Calls(library, "bias_gelu_backward", [*[TENSOR] * 5, *sizes], can_fail=True)
        self._gated = Calls(library, "gated", [*[TENSOR] * 3, *sizes])
        self._gated_backward = Calls(library, "gated_backward", [*[TENSOR] * 5, *sizes])

    def bias_gelu(self, x_rf: Tensor, bias_f: Tensor | None, tanh: bool) -> Tensor:
        """As `ActivationKernels` has it."""
        out_rf = torch.empty_like(x_rf)
        self._bias_gelu(x_rf, bias_f, out_rf, *x_rf.shape, tanh)
        return out_rf

    def bias_gelu_backward(
        self, gradient_rf: Tensor, x_rf: Tensor, bias_f: Tensor | None, tanh: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As `ActivationKernels` has it."""
        of_x, of_bias = torch.empty_like(x_rf), None if bias_f is None else torch.empty_like(bias_f)
        self._bias_gelu_backward(gradient_rf, x_rf, bias_f, of_x, of_bias, *x_rf.shape, tanh)
        return of_x, of_bias

    def gated(self, gate_rf: Tensor, wide_rf: Tensor, activation: GateActivation) -> Tensor:
        """As `ActivationKernels` has it."""
        out_rf = torch.empty_like(gate_rf)
        self._gated(gate_rf, wide_rf, out_rf, *gate_rf.shape, _NUMBERS[activation])
        return out_rf

    def gated_backward(
        self, gradient_rf: Tensor, gate_rf: Tensor, wide_rf: Tensor, activation: GateActivation
    ) -> tuple[Tensor, Tensor]:
        """As `ActivationKernels` has it."""
        of_gate, of_wide = torch.empty_like(gate_rf), torch.empty_like(wide_rf)
        self._gated_backward(gradient_rf, gate_rf, wide_rf, of_gate, of_wide, *gate_rf.shape, _NUMBERS[activation])
        return of_gate, of_wide
