"""residual + dropout(x + bias) in one pass; the mask is never kept, it follows from its seeds again.

Shapes: b samples of a micro-batch, each of s positions (or this rank's slice of them) by h hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.kernels.dropout_masks import drop, keeping_masks, on_device


class ResidualKernels(Protocol):
    """What computes it. Tensors are contiguous and of one dtype; a mask is that of `trainer.kernels.dropout_masks`.

    seeds_b: int64, or None where nothing is dropped. part: which of how many slices of the positions x is.
    """

    def forward(
        self,
        x_bsh: Tensor,
        bias_h: Tensor | None,
        residual_bsh: Tensor | None,
        seeds_b: Tensor | None,
        probability: float,
        part: tuple[int, int],
    ) -> Tensor:
        """residual + dropout(x + bias), rounded once; without a residual dropout(x + bias)."""

    def backward(
        self,
        gradient_bsh: Tensor,
        seeds_b: Tensor | None,
        probability: float,
        part: tuple[int, int],
        has_bias: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of x and of the bias, which is summed in fp32 in an order that the shape alone says."""


@dataclass(frozen=True)
class Dropped:
    """How much of x is dropped: one mask for each of its samples."""

    seeds: Sequence[int]
    probability: float
    part: tuple[int, int] = (0, 1)


def added(
    x_bsh: Tensor,
    bias_h: Tensor | None,
    residual_bsh: Tensor | None,
    dropped: Dropped | None,
    kernels: ResidualKernels | None,
) -> Tensor:
    """residual + dropout(x + bias), each where it is given; x is whole samples, or slices of them as `dropped` has it.

    A bias or residual of another dtype than x, as mixed precision can have, is added by torch.
    """
    beside = [one for one in (bias_h, residual_bsh) if one is not None]
    if kernels is None or not (beside or dropped) or any(one.dtype != x_bsh.dtype for one in beside):
        return _by_torch(x_bsh, bias_h, residual_bsh, dropped)
    total: Tensor = _Added.apply(x_bsh, bias_h, residual_bsh, dropped, kernels)
    return total


def _by_torch(x: Tensor, bias: Tensor | None, residual: Tensor | None, dropped: Dropped | None) -> Tensor:
    if bias is not None:
        x = x + bias
    if dropped is not None:
        mask = keeping_masks(dropped.seeds, x.shape[1:], dropped.probability, x.device, dropped.part)
        x = drop(x, mask, dropped.probability)
    return x if residual is None else residual + x


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        dropped: Dropped | None,
        kernels: ResidualKernels,
    ) -> Tensor:
        seeds_b = None if dropped is None else on_device(dropped.seeds, x.device)
        ctx.probability, ctx.part = (0.0, (0, 1)) if dropped is None else (dropped.probability, dropped.part)
        ctx.kernels, ctx.has_bias, ctx.seeds_b = kernels, bias is not None, seeds_b
        held = None if residual is None else residual.contiguous()
        return kernels.forward(x.contiguous(), bias, held, seeds_b, ctx.probability, ctx.part)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0].contiguous()
        of_x, of_bias = ctx.kernels.backward(gradient, ctx.seeds_b, ctx.probability, ctx.part, ctx.has_bias)
        return of_x, of_bias, gradients[0] if ctx.needs_input_grad[2] else None, None, None
