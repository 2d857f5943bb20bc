"""Activations by `csrc/cuda/activation.cu`.

Shapes: r rows, f width.
"""

from __future__ import annotations

from ctypes import c_int32

import torch
from torch import Tensor

from trainer.kernels.activation import NUMBERS, GateActivation
from trainer.kernels.cuda.tiles import Tiles, added_up, address, suffix
from trainer.kernels.native.launching import KernelRunner


class CudaActivations:
    """`trainer.kernels.activation.ActivationKernels`. Raises TypeError for a dtype without kernels."""

    def __init__(self, runner: KernelRunner) -> None:
        self._runner = runner

    def bias_gelu(self, x_rf: Tensor, bias_f: Tensor | None, tanh: bool) -> Tensor:
        """gelu(x + bias)."""
        y_rf = torch.empty_like(x_rf)
        tiles = Tiles.of(x_rf, y_rf)
        if not tiles.is_empty:
            tensors = address(y_rf), address(x_rf), address(bias_f)
            which = c_int32(_gelu(tanh)), c_int32(tiles.width)
            self._runner.launch(tiles.launch(f"bias_gelu_{suffix(x_rf.dtype)}", *tensors, *tiles.sizes(), *which))
        return y_rf

    def bias_gelu_backward(
        self, gradient_rf: Tensor, x_rf: Tensor, bias_f: Tensor | None, tanh: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of x and of the bias."""
        of_x_rf = torch.empty_like(x_rf)
        tiles = Tiles.of(x_rf, gradient_rf, of_x_rf)
        if tiles.is_empty:
            return of_x_rf, None if bias_f is None else torch.zeros_like(bias_f)
        partials = None if bias_f is None else tiles.partials(x_rf.device)
        tensors = address(of_x_rf), address(partials), address(gradient_rf), address(x_rf), address(bias_f)
        which = c_int32(_gelu(tanh)), c_int32(tiles.width)
        kernel = f"bias_gelu_backward_{suffix(x_rf.dtype)}"
        self._runner.launch(tiles.launch(kernel, *tensors, *tiles.sizes(), *which))
        if partials is None:
            return of_x_rf, None
        return of_x_rf, added_up("activation_bias_gradient", partials, x_rf.dtype, self._runner)

    def gated(self, gate_rf: Tensor, wide_rf: Tensor, activation: GateActivation) -> Tensor:
        """activation(gate) * wide."""
        y_rf = torch.empty_like(gate_rf)
        tiles = Tiles.of(gate_rf, wide_rf, y_rf)
        if not tiles.is_empty:
            tensors = address(y_rf), address(gate_rf), address(wide_rf)
            which = c_int32(NUMBERS[activation]), c_int32(tiles.width)
            self._runner.launch(tiles.launch(f"gated_{suffix(gate_rf.dtype)}", *tensors, *tiles.sizes(), *which))
        return y_rf

    def gated_backward(
        self, gradient_rf: Tensor, gate_rf: Tensor, wide_rf: Tensor, activation: GateActivation
    ) -> tuple[Tensor, Tensor]:
        """Gradients of gate and wide."""
        of_gate_rf, of_wide_rf = torch.empty_like(gate_rf), torch.empty_like(gate_rf)
        tiles = Tiles.of(gradient_rf, gate_rf, wide_rf, of_gate_rf, of_wide_rf)
        if not tiles.is_empty:
            given = address(gradient_rf), address(gate_rf), address(wide_rf)
            tensors = address(of_gate_rf), address(of_wide_rf), *given
            which = c_int32(NUMBERS[activation]), c_int32(tiles.width)
            kernel = f"gated_backward_{suffix(gate_rf.dtype)}"
            self._runner.launch(tiles.launch(kernel, *tensors, *tiles.sizes(), *which))
        return of_gate_rf, of_wide_rf


def _gelu(tanh: bool) -> int:
    return NUMBERS["gelu_tanh" if tanh else "gelu_erf"]
