"""LayerNorm and RMSNorm over the last dimension, and the sum of two tensors with its norm beside it.

Statistics are in fp32; the mean and the reciprocal of the standard deviation are kept for the backward pass.
Sources: Ba et al., arXiv 1607.06450; Zhang and Sennrich, arXiv 1910.07467.

Shapes: r rows, h hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from trainer.kernels.activation import as_rows


class NormKernels(Protocol):
    """Kernels for norms. Tensors are contiguous; weight and bias have x's dtype, statistics are fp32 [r].

    RMSNorm has no mean: it is None.
    """

    def forward(
        self, x_rh: Tensor, weight_h: Tensor, bias_h: Tensor | None, epsilon: float, rms: bool
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """(y_rh, mean_r, reciprocal deviation_r)."""

    def add_forward(
        self, x_rh: Tensor, residual_rh: Tensor, weight_h: Tensor, bias_h: Tensor | None, epsilon: float, rms: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """(x + residual rounded to its dtype, its norm, mean_r, reciprocal deviation_r)."""

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
        """Gradients of x, weight and bias, in their dtypes; `added_rh`, where given, is added to x's.

        Those of weight and bias are summed in fp32 in an order that depends on the shape alone.
        """


@dataclass(frozen=True)
class NormFunction:
    """Norms that bring gradients of their own, as another library's do: (x, weight_h, bias_h, epsilon, rms) -> y."""

    compute: Callable[[Tensor, Tensor, Tensor | None, float, bool], Tensor]


#: What `Operations.norms` may be.
Norms: TypeAlias = NormKernels | NormFunction


def adds_before(kernels: Norms | None) -> bool:
    """Return whether they compute the sum of two tensors and its norm in one pass."""
    return kernels is not None and not isinstance(kernels, NormFunction)


def normalized(
    x: Tensor, weight_h: Tensor, bias_h: Tensor | None, epsilon: float, rms: bool, kernels: Norms | None
) -> Tensor:
    """Normalise x [..., h], times weight, plus bias: the same shape and dtype."""
    if kernels is None:
        return _by_torch(x, weight_h, bias_h, epsilon, rms)
    if isinstance(kernels, NormFunction):
        return kernels.compute(x, weight_h, bias_h, epsilon, rms)
    normed: Tensor = _Norm.apply(x, weight_h, bias_h, epsilon, rms, kernels)
    return normed


def added_and_normalized(
    x: Tensor,
    residual: Tensor,
    weight_h: Tensor,
    bias_h: Tensor | None,
    epsilon: float,
    rms: bool,
    kernels: Norms | None,
) -> tuple[Tensor, Tensor]:
    """(x + residual, its norm), all of one shape [..., h].

    The norm is that of the sum as it is rounded, so both are what two operations would give; the sum's gradient is
    rounded once. What is of two dtypes, as mixed precision can have it, is added by torch.
    """
    if kernels is None or isinstance(kernels, NormFunction) or x.dtype != residual.dtype:
        total = residual + x
        return total, normalized(total, weight_h, bias_h, epsilon, rms, kernels)
    total, normed = _AddedNorm.apply(x, residual, weight_h, bias_h, epsilon, rms, kernels)
    return total, normed


def _by_torch(x: Tensor, weight_h: Tensor, bias_h: Tensor | None, epsilon: float, rms: bool) -> Tensor:
    if rms:
        return nn.functional.rms_norm(x, weight_h.shape, weight_h, epsilon)
    return nn.functional.layer_norm(x, weight_h.shape, weight_h, bias_h, epsilon)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, rms: bool, kernels: NormKernels
    ) -> Tensor:
        x_rh = as_rows(x)
        y_rh, mean_r, deviation_r = kernels.forward(x_rh, weight, bias, epsilon, rms)
        ctx.save_for_backward(x_rh, weight, mean_r, deviation_r)
        ctx.kernels, ctx.has_bias = kernels, bias is not None
        return y_rh.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x_rh, weight, mean_r, deviation_r = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.kernels.backward(
            as_rows(gradients[0]), x_rh, weight, mean_r, deviation_r, None, ctx.has_bias
        )
        return of_x.view(gradients[0].shape), of_weight, of_bias, None, None, None


class _AddedNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        rms: bool,
        kernels: NormKernels,
    ) -> tuple[Tensor, Tensor]:
        total_rh, y_rh, mean_r, deviation_r = kernels.add_forward(
            as_rows(x), as_rows(residual), weight, bias, epsilon, rms
        )
        ctx.save_for_backward(total_rh, weight, mean_r, deviation_r)
        ctx.kernels, ctx.has_bias = kernels, bias is not None
        return total_rh.view(x.shape), y_rh.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        total_rh, weight, mean_r, deviation_r = ctx.saved_tensors
        of_total, of_normed = gradients
        of_x, of_weight, of_bias = ctx.kernels.backward(
            as_rows(of_normed), total_rh, weight, mean_r, deviation_r, as_rows(of_total), ctx.has_bias
        )
        of_x = of_x.view(of_normed.shape)
        return of_x, of_x, of_weight, of_bias, None, None, None
