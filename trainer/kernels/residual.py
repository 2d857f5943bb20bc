"""residual + dropout(x + bias) in one pass; the mask is never kept, it follows from its seeds again.

Shapes: b samples of a micro-batch, each of s positions (or this rank's slice of them) by h hidden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.recipe.model_options import DROPOUT_LEVELS

#: By how much SplitMix64 counts on, 2^64 over the golden ratio, and what it mixes with; as torch's signed numbers.
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST_FACTOR = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND_FACTOR = 0x94D049BB133111EB - (1 << 64)


def keeping_masks(
    seeds: Sequence[int],
    shape: Sequence[int],
    probability: float,
    device: torch.device,
    part: tuple[int, int] = (0, 1),
) -> Tensor:
    """[seeds, *shape], true where a value is kept; each seed's mask by itself. Does not wait for a GPU.

    part: (which, of how many) slices of the first dimension `shape` is; only that slice is drawn.
    """
    size = math.prod(shape)
    first = part[0] * size
    first_word, end_word = first // 4, -(-(first + size) // 4)
    mixed = torch.arange(first_word + 1, end_word + 1, device=device).mul_(_GOLDEN_GAMMA)
    mixed = mixed + on_device(seeds, device).unsqueeze(-1)
    shifted = torch.empty_like(mixed)
    _xor_shifted(mixed, 30, shifted).mul_(_FIRST_FACTOR)
    _xor_shifted(mixed, 27, shifted).mul_(_SECOND_FACTOR)
    _xor_shifted(mixed, 31, shifted)
    levels = mixed.view(torch.int16)[:, first - 4 * first_word :][:, :size]
    return (levels >= lowest_kept_level(probability)).view(len(seeds), *shape)


def on_device(seeds: Sequence[int], device: torch.device) -> Tensor:
    """int64 [seeds]. Does not wait for a GPU."""
    return torch.tensor(seeds, dtype=torch.int64).to(device, non_blocking=True)


def lowest_kept_level(probability: float) -> int:
    """Return the lowest kept level of the signed 16-bit numbers: a value with a lower number is dropped."""
    return _dropped_levels(probability) - DROPOUT_LEVELS // 2


def kept_scale(probability: float) -> float:
    """Return the factor for kept values, so that the expectation stays: 1 / the share that is really kept."""
    return DROPOUT_LEVELS / (DROPOUT_LEVELS - _dropped_levels(probability))


def drop(x: Tensor, mask: Tensor, probability: float) -> Tensor:
    """Return x where `mask` is true, scaled to keep its expectation, and 0 elsewhere. Backward needs only the mask."""
    dropped: Tensor = _Drop.apply(x, mask, kept_scale(probability))
    return dropped


def _dropped_levels(probability: float) -> int:
    return min(max(round(probability * DROPOUT_LEVELS), 1), DROPOUT_LEVELS - 1)


def _xor_shifted(bits: Tensor, by: int, scratch: Tensor) -> Tensor:
    """Compute bits ^ (bits >> by) of unsigned numbers in place: torch shifts the sign in, which is masked out."""
    torch.bitwise_right_shift(bits, by, out=scratch)
    return bits.bitwise_xor_(scratch.bitwise_and_((1 << (64 - by)) - 1))


class _Drop(torch.autograd.Function):
    """scale * mask * x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return (x * mask).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return (gradients[0] * mask).mul_(ctx.scale), None, None


class ResidualKernels(Protocol):
    """Kernels for residual and dropout. Tensors are contiguous and of one dtype; masks are those of this module.

    seeds_b: int64, or None if nothing is dropped. part: which of how many slices of the positions x is.
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
        """Return residual + dropout(x + bias), rounded once; without a residual dropout(x + bias)."""

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
    """The dropout of x: one mask for each of its samples."""

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
    """Return residual + dropout(x + bias), each if given; x is whole samples, or slices as `dropped` says.

    torch adds a bias or residual of another dtype than x, as mixed precision can have.
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
