"""A tensor as kernels take it: contiguous rows of its last dimension."""

from __future__ import annotations

from torch import Tensor


def as_rows(x: Tensor) -> Tensor:
    """x [..., h] as [r, h]; the same memory where that is contiguous."""
    return x.reshape(-1, x.shape[-1]).contiguous()
