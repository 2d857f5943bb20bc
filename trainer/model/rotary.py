"""Rotary positions: pairs of a head's numbers rotated by angles that grow with the position.

Sources: Su et al., arXiv 2104.09864; YaRN: Peng et al., arXiv 2309.00071.
Shapes: b batch, n heads, s sequence, d head size, r pairs of a head that are rotated.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from trainer.recipe.model_options import LLAMA3_TURNS, YARN, YARN_TURNS, RotaryScaling


def rotated(
    x_bnsd: Tensor,
    base: float,
    turned: int,
    scaling: RotaryScaling | None = None,
    positions_bs: Tensor | None = None,
) -> Tensor:
    """Rotate the first `turned` (even) numbers of each head by their positions; in x's dtype.

    positions_bs: int64; 0 to s - 1 in each sample when not given.
    """
    cos, sin = _turns(x_bnsd.shape[-2], base, turned, x_bnsd.dtype, x_bnsd.device, scaling)
    if positions_bs is not None:
        cos, sin = cos[positions_bs].unsqueeze(1), sin[positions_bs].unsqueeze(1)
    first_bnsr, second_bnsr, rest = x_bnsd.split((turned // 2, turned // 2, x_bnsd.shape[-1] - turned), dim=-1)
    return torch.cat((first_bnsr * cos - second_bnsr * sin, second_bnsr * cos + first_bnsr * sin, rest), dim=-1)


@functools.lru_cache(maxsize=8)
def _turns(
    length: int, base: float, turned: int, dtype: torch.dtype, device: torch.device, scaling: RotaryScaling | None
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, on the device; all layers of a model share them."""
    frequency_r = 1.0 / base ** (torch.arange(0, turned, 2, dtype=torch.float32) / turned)
    size = 1.0
    if scaling is not None:
        kept_r = _kept_by_yarn(base, turned, scaling) if scaling.kind == YARN else _kept_by_llama3(frequency_r, scaling)
        frequency_r = frequency_r * (kept_r + (1 - kept_r) / scaling.factor)
        size = 0.1 * math.log(scaling.factor) + 1 if scaling.kind == YARN else 1.0
    angle_sr = torch.arange(length, dtype=torch.float32)[:, None] * frequency_r
    return (angle_sr.cos() * size).to(device, dtype), (angle_sr.sin() * size).to(device, dtype)


def _kept_by_llama3(frequency_r: Tensor, scaling: RotaryScaling) -> Tensor:
    """Return the share of each frequency that is not stretched: a line in its turns within the original length."""
    turns_r = scaling.original_length * frequency_r / (2 * math.pi)
    slow, fast = LLAMA3_TURNS
    return ((turns_r - slow) / (fast - slow)).clamp(0, 1)


def _kept_by_yarn(base: float, turned: int, scaling: RotaryScaling) -> Tensor:
    """Return the same for YaRN: a line in the number of the pair, between pairs with two numbers of turns."""

    def pair(turns: float) -> float:
        return turned * math.log(scaling.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    slow, fast = YARN_TURNS
    first, last = max(math.floor(pair(fast)), 0), min(math.ceil(pair(slow)), turned - 1)
    pairs_r = torch.arange(turned // 2, dtype=torch.float32)
    return 1 - ((pairs_r - first) / max(last - first, 0.001)).clamp(0, 1)
