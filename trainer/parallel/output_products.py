"""The output layer's three products, for a chunk of tokens each: logits, and the gradients of what they are made of.

Where a CPU cannot multiply 16-bit numbers, the weight is cast to fp32 block by block, and logits and their gradient are
fp32: no copy of the whole weight is made, and nothing is rounded between the products. Where the device multiplies
them, logits and their gradient are rounded to 16 bits, as in Megatron-LM: docs/kernels.md has the bound.

Shapes: t tokens of a chunk, h hidden, v rows of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from trainer.parallel.products import is_slow_half

#: Numbers of the weight that are cast to fp32, or whose gradient is made, at a time.
_BLOCK_NUMBERS = 1 << 20


def logits_into(logits_tv: Tensor, x_th: Tensor, weight_vh: Tensor) -> None:
    """logits <- x @ weight.T; they may be wider than both."""
    if is_slow_half(x_th):
        wide_th = x_th.float()
        for rows in _blocks(weight_vh):
            torch.mm(wide_th, weight_vh[rows].float().t(), out=logits_tv[:, rows])
    elif logits_tv.dtype == x_th.dtype:
        torch.mm(x_th, weight_vh.t(), out=logits_tv)
    else:
        logits_tv.copy_(x_th @ weight_vh.t())


def gradient_of_x(gradient_tv: Tensor, weight_vh: Tensor) -> Tensor:
    """gradient @ weight, [t, h] in the gradient's dtype."""
    if gradient_tv.dtype == weight_vh.dtype:
        return gradient_tv @ weight_vh
    total_th = gradient_tv.new_zeros(gradient_tv.shape[0], weight_vh.shape[1])
    for rows in _blocks(weight_vh):
        total_th.addmm_(gradient_tv[:, rows], weight_vh[rows].float())
    return total_th


def add_gradient_of_weight(
    total_vh: Tensor, gradient_tv: Tensor, x_th: Tensor, multiplier: float, is_first: bool
) -> None:
    """total <- total + multiplier * gradient.T @ x, in fp32; the product alone where it is the first of its sum."""
    beta = 0 if is_first else 1
    if gradient_tv.dtype == torch.float32:
        total_vh.addmm_(gradient_tv.t(), x_th.float(), beta=beta, alpha=multiplier)
        return
    if x_th.is_cuda and hasattr(torch.ops.aten.addmm, "dtype_out"):  # since torch 2.8
        torch.ops.aten.addmm.dtype_out(
            total_vh, gradient_tv.t(), x_th, torch.float32, beta=beta, alpha=multiplier, out=total_vh
        )
        return
    for rows in _blocks(total_vh):  # a product rounded to 16 bits: never one of the whole weight
        block = total_vh[rows].zero_() if is_first else total_vh[rows]
        block.add_(gradient_tv[:, rows].t() @ x_th, alpha=multiplier)


def _blocks(weight_vh: Tensor) -> Iterator[slice]:
    """Rows of at most so many numbers together."""
    rows, hidden = weight_vh.shape
    many = max(1, _BLOCK_NUMBERS // hidden)
    return (slice(first, first + many) for first in range(0, rows, many))
