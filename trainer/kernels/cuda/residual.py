"""residual + dropout(x + bias) by `csrc/cuda/residual.cu`.

Shapes: b samples, s positions of each that are here, h hidden.
"""

from __future__ import annotations

from ctypes import c_float, c_int32, c_int64

import torch
from torch import Tensor

from trainer.kernels.cuda.tiles import Tiles, added_up, address, suffix
from trainer.kernels.native.launching import Argument, KernelRunner
from trainer.kernels.residual import kept_scale, lowest_kept_level


class CudaResiduals:
    """`trainer.kernels.residual.ResidualKernels`. Raises TypeError for a dtype without kernels."""

    def __init__(self, runner: KernelRunner) -> None:
        self._runner = runner

    def forward(
        self,
        x_bsh: Tensor,
        bias_h: Tensor | None,
        residual_bsh: Tensor | None,
        seeds_b: Tensor | None,
        probability: float,
        part: tuple[int, int],
    ) -> Tensor:
        """Compute residual + dropout(x + bias)."""
        y_bsh = torch.empty_like(x_bsh)
        tiles = Tiles.of(x_bsh, residual_bsh, y_bsh)
        if not tiles.is_empty:
            tensors = address(y_bsh), address(x_bsh), address(bias_h), address(residual_bsh), address(seeds_b)
            dropout = _dropout(x_bsh, probability, part)
            kernel = f"residual_{suffix(x_bsh.dtype)}"
            self._runner.launch(tiles.launch(kernel, *tensors, *tiles.sizes(), *dropout, c_int32(tiles.width)))
        return y_bsh

    def backward(
        self,
        gradient_bsh: Tensor,
        seeds_b: Tensor | None,
        probability: float,
        part: tuple[int, int],
        has_bias: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of x, which is the one given where nothing is dropped, and of the bias."""
        hidden, dtype = gradient_bsh.shape[-1], gradient_bsh.dtype
        of_x_bsh = None if seeds_b is None else torch.empty_like(gradient_bsh)
        given = gradient_bsh if of_x_bsh is None else of_x_bsh
        tiles = Tiles.of(gradient_bsh, of_x_bsh)
        if tiles.is_empty:
            return given, gradient_bsh.new_zeros(hidden) if has_bias else None
        if of_x_bsh is None and not has_bias:
            return given, None
        partials = tiles.partials(gradient_bsh.device) if has_bias else None
        tensors = address(of_x_bsh), address(partials), address(gradient_bsh), address(seeds_b)
        dropout = _dropout(gradient_bsh, probability, part)
        kernel = f"residual_backward_{suffix(dtype)}"
        self._runner.launch(tiles.launch(kernel, *tensors, *tiles.sizes(), *dropout, c_int32(tiles.width)))
        if partials is None:
            return given, None
        return given, added_up("residual_bias_gradient", partials, dtype, self._runner)


def _dropout(x_bsh: Tensor, probability: float, part: tuple[int, int]) -> tuple[Argument, ...]:
    """positions, first_position, lowest_kept and scale; of no use where there are no seeds."""
    positions = x_bsh.shape[1]
    first_position = part[0] * positions
    lowest_kept, scale = lowest_kept_level(probability), kept_scale(probability)
    return c_int64(positions), c_int64(first_position), c_int32(lowest_kept), c_float(scale)
