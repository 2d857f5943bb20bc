"""residual + dropout(x + bias) by `csrc/cpu/residual.cpp`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from trainer.kernels.cpp.calls import NUMBER, SIZE, TENSOR, Calls
from trainer.kernels.residual import kept_scale, lowest_kept_level

_DROPOUT = [SIZE, SIZE, SIZE, SIZE, ctypes.c_int32, NUMBER]


class CppResiduals:
    """`ResidualKernels` of a CPU, fp32 and bf16. Results do not depend on the number of threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._forward = Calls(library, "residual", [*[TENSOR] * 5, *_DROPOUT])
        self._backward = Calls(library, "residual_backward", [*[TENSOR] * 4, *_DROPOUT], can_fail=True)

    def forward(
        self,
        x_bsh: Tensor,
        bias_h: Tensor | None,
        residual_bsh: Tensor | None,
        seeds_b: Tensor | None,
        probability: float,
        part: tuple[int, int],
    ) -> Tensor:
        """As `ResidualKernels` has it."""
        y_bsh = torch.empty_like(x_bsh)
        self._forward(y_bsh, x_bsh, bias_h, residual_bsh, seeds_b, *_dropout(x_bsh, probability, part))
        return y_bsh

    def backward(
        self,
        gradient_bsh: Tensor,
        seeds_b: Tensor | None,
        probability: float,
        part: tuple[int, int],
        has_bias: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """As `ResidualKernels` has it."""
        of_x_bsh = None if seeds_b is None else torch.empty_like(gradient_bsh)
        of_bias_h = gradient_bsh.new_empty(gradient_bsh.shape[-1]) if has_bias else None
        if of_x_bsh is not None or has_bias:
            self._backward(gradient_bsh, of_x_bsh, of_bias_h, seeds_b, *_dropout(gradient_bsh, probability, part))
        return gradient_bsh if of_x_bsh is None else of_x_bsh, of_bias_h


def _dropout(x_bsh: Tensor, probability: float, part: tuple[int, int]) -> tuple[int | float, ...]:
    """samples, positions, hidden, first_position, lowest_kept and scale; the last are of no use without seeds."""
    first_position = part[0] * x_bsh.shape[1]
    return *x_bsh.shape, first_position, lowest_kept_level(probability), kept_scale(probability)
