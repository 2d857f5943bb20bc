"""Linear layers that share an input which every tensor-parallel rank has whole, with communication beside arithmetic.

Backward, what the ranks' layers want of the input has to be summed over the ranks. That sum is under way while this
rank works out the gradients of its weights, which need nothing of it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.parallel.process_groups import Parallel
from trainer.parallel.products import linear, matmul


def products_of_copy(x: Tensor, layers: list[tuple[Tensor, Tensor | None]], parallel: Parallel) -> list[Tensor]:
    """x @ weight.T + bias for each (weight, bias), this rank's rows of them; x: [..., in], the same on every rank.

    Backward is collective: one all-reduce, whatever the number of layers.
    """
    if parallel.tensor_size == 1:
        return [linear(x, weight, bias) for weight, bias in layers]
    flat = [one for layer in layers for one in layer]
    of_layers: tuple[Tensor, ...] = _ProductsOfCopy.apply(x, parallel.tensor_group, *flat)  # type: ignore[no-untyped-call]
    return list(of_layers)


class _ProductsOfCopy(torch.autograd.Function):
    """weights_and_biases: weight, bias or None, weight, ...; an output for each weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, *weights_and_biases: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = weights_and_biases[::2], weights_and_biases[1::2]
        ctx.group = group
        ctx.save_for_backward(x, *weights)
        return tuple(linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, *weights = ctx.saved_tensors
        # Flat, as the products of weights' gradients want them.
        flat = [gradient.reshape(-1, gradient.shape[-1]) for gradient in gradients]
        of_x: Any = None
        for gradient, weight in zip(flat, weights, strict=True):
            part = matmul(gradient, weight)
            of_x = part if of_x is None else of_x.add_(part)
        summing = dist.all_reduce(of_x, group=ctx.group, async_op=True)
        x_flat = x.reshape(-1, x.shape[-1])
        of_layers: list[Tensor | None] = []
        for number, gradient in enumerate(flat):
            of_layers.append(matmul(gradient.t(), x_flat))
            has_bias = ctx.needs_input_grad[2 + 2 * number + 1]
            of_layers.append(gradient.sum(dim=0) if has_bias else None)
        summing.wait()
        return of_x.view_as(x), None, *of_layers
