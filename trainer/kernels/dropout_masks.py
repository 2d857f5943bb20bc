"""Which values a dropout keeps: a function of a seed and of where a value lies, the same numbers on every device.

A mask's seed begins a SplitMix64 sequence (Steele, Lea and Flood, OOPSLA 2014), of which any number can be had without
those before it: element e has bits 16 (e % 4) and up of number e // 4, as a signed number of 16 bits, and is kept
unless that is among the lowest. So a kernel that is at some position and unit of a sample draws what it needs there,
and no mask has to be kept or handed from one slice of the sequence to another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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
    """Of the signed numbers of 16 bits: a value whose number is lower is dropped."""
    return _dropped_levels(probability) - DROPOUT_LEVELS // 2


def kept_scale(probability: float) -> float:
    """What is kept is multiplied by it, so that the expectation stays: 1 / the share that is really kept."""
    return DROPOUT_LEVELS / (DROPOUT_LEVELS - _dropped_levels(probability))


def drop(x: Tensor, mask: Tensor, probability: float) -> Tensor:
    """x where `mask` is true, scaled so that its expectation stays, and 0 elsewhere. Backward needs the mask alone."""
    dropped: Tensor = _Drop.apply(x, mask, kept_scale(probability))
    return dropped


def _dropped_levels(probability: float) -> int:
    return min(max(round(probability * DROPOUT_LEVELS), 1), DROPOUT_LEVELS - 1)


def _xor_shifted(bits: Tensor, by: int, scratch: Tensor) -> Tensor:
    """bits ^ (bits >> by) of unsigned numbers, in place: torch shifts the sign in, which is masked out again."""
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
