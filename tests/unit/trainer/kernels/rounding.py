"""The tolerance of results: twice the error of torch's operation in the same dtype, and one rounding."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_no_worse(ours: Tensor, by_torch: Tensor, exact: Tensor, terms: int = 1) -> None:
    """`exact`: in fp64, of the same rounded inputs. No number of ours may be NaN.

    terms: how many numbers each is the sum of. Torch adds in an order that depends on the CPU's instructions, so a sum
    may also be off by what random roundings amount to, which grows with the root of their number.
    """
    assert ours.dtype == by_torch.dtype
    assert ours.shape == exact.shape
    error, of_torch = ((one.double() - exact).abs().max().item() for one in (ours, by_torch))
    rounding = torch.finfo(ours.dtype).eps / 2 * exact.abs().max().item() * terms**0.5
    assert error <= 2 * of_torch + rounding, f"off by {error:.3g}, where torch is by {of_torch:.3g}"


def misaligned(tensor: Tensor, by: int) -> Tensor:
    """Return the same numbers, contiguous, `by` elements behind an aligned address."""
    room = torch.empty(tensor.numel() + by, dtype=tensor.dtype, device=tensor.device)
    return room[by:].view(tensor.shape).copy_(tensor)
