"""ALiBi: attention scores that fall off linearly with distance (Press et al., arXiv 2108.12409).

Softmax does not see what a whole row has in common, so slope x key position serves for slope x distance. The bias needs
no mask tensor: a few more features of query and key make the product compute it, and causal flash attention runs as is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.recipe.activations import alibi_feature_count

# Positions are split into multiples of this and a rest, both exact in bfloat16's 8 bits up to 32,768.
_COARSE = 128


def alibi_slopes(heads: int) -> list[float]:
    """Slopes of all heads of the model: a geometric series for powers of two, filled up from the next one otherwise."""
    closest = 2 ** math.floor(math.log2(heads))
    base = 2.0 ** (-(2.0 ** -(math.log2(closest) - 3)))
    slopes = [base**power for power in range(1, closest + 1)]
    if closest < heads:
        slopes += alibi_slopes(2 * closest)[0::2][: heads - closest]
    return slopes


def query_features(slopes_h: Tensor, head_size: int, dtype: torch.dtype) -> Tensor:
    """[heads, features]: slope x sqrt(head size), the root against attention's scale, as a sum of two numbers."""
    wanted_h = slopes_h.double() * math.sqrt(head_size)
    high_h = wanted_h.to(dtype)
    low_h = (wanted_h - high_h.double()).to(dtype)
    features = torch.zeros(len(slopes_h), alibi_feature_count(head_size), dtype=dtype)
    features[:, 0] = features[:, 1] = high_h
    features[:, 2] = features[:, 3] = low_h
    return features


def key_features(length: int, head_size: int, dtype: torch.dtype) -> Tensor:
    """[length, features]: the key's position as a sum of two numbers, once for each part of the slope."""
    position_s = torch.arange(length)
    fine_s = position_s % _COARSE
    features = torch.zeros(length, alibi_feature_count(head_size), dtype=dtype)
    features[:, 0] = features[:, 2] = (position_s - fine_s).to(dtype)
    features[:, 1] = features[:, 3] = fine_s.to(dtype)
    return features
