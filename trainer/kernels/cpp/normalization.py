"""Norms by `csrc/cpu/normalization.cpp`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from trainer.kernels.cpp.calls import NUMBER, SIZE, TENSOR, Calls


class CppNorms:
    """`NormKernels` of a CPU, fp32 and bf16. Results do not depend on the number of threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._forward = Calls(library, "norm_forward", [*[TENSOR] * 8, SIZE, SIZE, NUMBER])
        self._backward = Calls(library, "norm_backward", [*[TENSOR] * 9, SIZE, SIZE], can_fail=True)

    def forward(
        self, x_rh: Tensor, weight_h: Tensor, bias_h: Tensor | None, epsilon: float, rms: bool
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """As `NormKernels` has it."""
        y_rh, (mean_r, deviation_r) = torch.empty_like(x_rh), _statistics(x_rh, rms)
        self._forward(x_rh, None, weight_h, bias_h, None, y_rh, mean_r, deviation_r, *x_rh.shape, epsilon)
        return y_rh, mean_r, deviation_r

    def add_forward(
        self, x_rh: Tensor, residual_rh: Tensor, weight_h: Tensor, bias_h: Tensor | None, epsilon: float, rms: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """As `NormKernels` has it."""
        total_rh, y_rh, (mean_r, deviation_r) = torch.empty_like(x_rh), torch.empty_like(x_rh), _statistics(x_rh, rms)
        self._forward(x_rh, residual_rh, weight_h, bias_h, total_rh, y_rh, mean_r, deviation_r, *x_rh.shape, epsilon)
        return total_rh, y_rh, mean_r, deviation_r

    def backward(
        self,
        gradient_rh: Tensor,
        x_rh: Tensor,
        weight_h: Tensor,
        mean_r: Tensor | None,
        deviation_r: Tensor,
        added_rh: Tensor | None,
        has_bias: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """As `NormKernels` has it."""
        of_x, of_weight = torch.empty_like(x_rh), torch.empty_like(weight_h)
        of_bias = torch.empty_like(weight_h) if has_bias else None
        self._backward(
            gradient_rh, x_rh, weight_h, mean_r, deviation_r, added_rh, of_x, of_weight, of_bias, *x_rh.shape
        )
        return of_x, of_weight, of_bias


def _statistics(x_rh: Tensor, rms: bool) -> tuple[Tensor | None, Tensor]:
    """Room for the mean, which RMSNorm has none of, and the reciprocal of the deviation."""
    mean_r, deviation_r = x_rh.new_empty(2, len(x_rh), dtype=torch.float32)
    return None if rms else mean_r, deviation_r
