"""The tolerance of the C++ operations: at most twice the error of torch's operation in the same type."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def assert_as_close_as_torch(found: Tensor, by_torch: Tensor, exact: Tensor) -> None:
    """Both against fp64; below two roundings of the greatest number nothing is asked. Not written is not close."""
    scale = 2 * exact.abs().max().clamp(min=1e-30) * torch.finfo(found.dtype).eps
    error, others = (float((one.double() - exact).abs().max()) for one in (found, by_torch))
    assert found.shape == exact.shape
    assert error <= 2 * others + float(scale), (error, others, float(scale))


def with_threads(count: int, compute: Callable[[], Result]) -> Result:
    """Return the result of `compute` with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return compute()
    finally:
        torch.set_num_threads(before)
