"""Rotary positions: pairs of a head's numbers are turned by an angle that grows with the position.

Source: Su et al., arXiv 2104.09864. A pair's two numbers lie half of the turned part apart, as in GPT-NeoX, Llama and
Megatron-LM. Angles are computed in fp32 as transformers computes them, so that long texts are read alike there.

Shapes: b batch, n heads, s sequence, d head size, r pairs.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def rotated(x_bnsd: Tensor, base: float, turned: int) -> Tensor:
    """x with the first `turned` (even) numbers of each head turned by their positions, 0 to s - 1; in x's dtype."""
    cos_sr, sin_sr = _turns(x_bnsd.shape[-2], base, turned, x_bnsd.dtype, x_bnsd.device)
    first_bnsr, second_bnsr, rest = x_bnsd.split((turned // 2, turned // 2, x_bnsd.shape[-1] - turned), dim=-1)
    return torch.cat(
        (first_bnsr * cos_sr - second_bnsr * sin_sr, second_bnsr * cos_sr + first_bnsr * sin_sr, rest), dim=-1
    )


@functools.lru_cache(maxsize=8)
def _turns(length: int, base: float, turned: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, on the device; all layers of a model share them."""
    frequency_r = 1.0 / base ** (torch.arange(0, turned, 2, dtype=torch.float32) / turned)
    angle_sr = torch.arange(length, dtype=torch.float32)[:, None] * frequency_r
    return angle_sr.cos().to(device, dtype), angle_sr.sin().to(device, dtype)
