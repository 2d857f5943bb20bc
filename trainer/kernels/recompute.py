"""Results that the backward pass makes again from what it has anyway, instead of keeping them: less memory, more work.

On a CPU a norm or an activation costs a hundredth of the product that reads it, and is kept for that product alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor


@contextlib.contextmanager
def made_again(result: Tensor, make: Callable[[], Tensor] | None) -> Iterator[None]:
    """Let autograd keep `make` inside the block instead of `result`, in any shape; `make` gives equal numbers.

    The backward pass calls it without gradients, once for each place that would have kept `result`. Its inputs must not
    change before. On a GPU, and without `make`, autograd works as usual.
    """
    if make is None or result.device.type != "cpu" or not (torch.is_grad_enabled() and result.is_contiguous()):
        yield
        return
    # Of the result itself only where it lies: what holds it would keep it.
    address, numbers = result.data_ptr(), result.numel()

    def kept(tensor: Tensor) -> Tensor | _Made:
        is_result = tensor.data_ptr() == address and tensor.numel() == numbers and tensor.is_contiguous()
        return _Made(make, tensor.shape) if is_result else tensor

    with torch.autograd.graph.saved_tensors_hooks(kept, _given):
        yield


class _Made:
    """Stands for a result."""

    def __init__(self, make: Callable[[], Tensor], shape: torch.Size) -> None:
        self._make, self._shape = make, shape

    def __call__(self) -> Tensor:
        with torch.no_grad():
            return self._make().view(self._shape)


def _given(kept: Tensor | _Made) -> Tensor:
    return kept() if isinstance(kept, _Made) else kept
