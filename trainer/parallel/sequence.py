"""Sequence parallelism: between layers that are split, each tensor-parallel rank works on its slice of the sequence.

A row-parallel layer's partial results are summed so that each rank gets the sum of its own slice, and a column-parallel
layer gathers the slices: an all-reduce taken apart, so that norms, dropout and residuals are neither computed nor kept
by every rank. Source: Korthikanti et al., arXiv 2205.05198.

Shapes: b batch, s sequence, h any size. Slices have s / tensor_size positions; that of the first rank comes first.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from trainer.parallel.process_groups import Parallel
from trainer.parallel.products import linear, matmul


def gather_sequence(x_bsh: Tensor, parallel: Parallel) -> Tensor:
    """Gather this rank's slice to the whole. Collective; not for autograd."""
    return _Gathering(x_bsh, parallel).whole()


def scatter_sequence(partial_bsh: Tensor, parallel: Parallel) -> Tensor:
    """Partial sums of the whole -> this rank's slice of the ranks' sum. Collective; not for autograd."""
    return _Scattering(partial_bsh, parallel).slice()


def gathered(x_bsh: Tensor, parallel: Parallel) -> Tensor:
    """`gather_sequence` whose gradient is summed over the ranks and scattered: where slices enter what is split."""
    whole: Tensor = _Gathered.apply(x_bsh, parallel)
    return whole


def sum_to_slices(partial_bsh: Tensor, parallel: Parallel) -> Tensor:
    """`scatter_sequence` whose gradient is gathered: where split layers' partial results meet."""
    summed: Tensor = _SumToSlices.apply(partial_bsh, parallel)
    return summed


def products_of_gathered(x_bsh: Tensor, layers: list[tuple[Tensor, Tensor | None]], parallel: Parallel) -> list[Tensor]:
    """Return x @ weight.T + bias for each (weight, bias), this rank's rows, of the whole x: [b, s, rows].

    x_bsh: this rank's slice, the only tensor that is kept: the backward pass gathers again. All of it is collective.
    """
    flat = [one for layer in layers for one in layer]
    of_layers: tuple[Tensor, ...] = _ProductsOfGathered.apply(x_bsh, parallel, *flat)
    return list(of_layers)


def gradient_of_all_slices(parameter: Tensor, parallel: Parallel) -> Tensor:
    """Return the parameter, whole on each rank; slices' gradients are summed in fp32. Backward is collective."""
    return parameter if not parallel.splits_sequence else _GradientOfAllSlices.apply(parameter, parallel)


class _Gathering:
    """An all-gather under way."""

    def __init__(self, x_bsh: Tensor, parallel: Parallel) -> None:
        self._own = x_bsh.contiguous()
        self._parts = x_bsh.new_empty(parallel.tensor_size, *x_bsh.shape)
        # The concatenation along the first dimension, which every backend knows.
        flat = self._parts.view(-1, *x_bsh.shape[1:])
        self._work = dist.all_gather_into_tensor(flat, self._own, group=parallel.tensor_group, async_op=True)

    def whole(self) -> Tensor:
        """[b, s, h], once it is there."""
        self._work.wait()
        ranks, b, s, *rest = self._parts.shape
        return self._parts.transpose(0, 1).reshape(b, ranks * s, *rest)


class _Scattering:
    """A reduce-scatter under way."""

    def __init__(self, partial_bsh: Tensor, parallel: Parallel) -> None:
        ranks = parallel.tensor_size
        b, s, *rest = partial_bsh.shape
        parts = partial_bsh.reshape(b, ranks, s // ranks, *rest).transpose(0, 1).contiguous()
        self._parts = parts.view(ranks * b, s // ranks, *rest)
        self._own = partial_bsh.new_empty(b, s // ranks, *rest)
        self._work = dist.reduce_scatter_tensor(self._own, self._parts, group=parallel.tensor_group, async_op=True)

    def slice(self) -> Tensor:
        """[b, s / tensor_size, h], once it is there."""
        self._work.wait()
        return self._own


class _Gathered(torch.autograd.Function):
    """An all-gather; backward, a reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, x_bsh: Tensor, parallel: Parallel) -> Tensor:
        ctx.parallel = parallel
        return gather_sequence(x_bsh, parallel)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return scatter_sequence(gradients[0], ctx.parallel), None


class _SumToSlices(torch.autograd.Function):
    """A reduce-scatter; backward, an all-gather."""

    @staticmethod
    def forward(ctx: Any, partial_bsh: Tensor, parallel: Parallel) -> Tensor:
        ctx.parallel = parallel
        return scatter_sequence(partial_bsh, parallel)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gather_sequence(gradients[0], ctx.parallel), None


class _ProductsOfGathered(torch.autograd.Function):
    """weights_and_biases: weight, bias or None, weight, ...; an output for each weight.

    Backward, x is gathered beside the products that make its gradient, and that is scattered beside the weights' own.
    """

    @staticmethod
    def forward(ctx: Any, x_bsh: Tensor, parallel: Parallel, *weights_and_biases: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = weights_and_biases[::2], weights_and_biases[1::2]
        ctx.parallel = parallel
        ctx.save_for_backward(x_bsh, *weights)
        whole_bsh = gather_sequence(x_bsh, parallel)
        return tuple(linear(whole_bsh, weight, bias) for weight, bias in zip(weights, biases, strict=True))  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x_bsh, *weights = ctx.saved_tensors
        gathering = _Gathering(x_bsh, ctx.parallel)
        of_x = matmul(gradients[0], weights[0])
        for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
            of_x += matmul(gradient, weight)
        whole = gathering.whole()
        scattering = _Scattering(of_x, ctx.parallel)
        # Flat, as the products of weights' gradients want them.
        whole_flat, of_layers = whole.view(-1, whole.shape[-1]), list[Tensor | None]()
        for number, gradient in enumerate(gradients):
            flat = gradient.reshape(-1, gradient.shape[-1])
            of_layers.append(matmul(flat.t(), whole_flat))
            of_layers.append(flat.sum(dim=0) if ctx.needs_input_grad[3 + 2 * number] else None)
        return scattering.slice(), None, *of_layers


class _GradientOfAllSlices(torch.autograd.Function):
    """The parameter as it is; backward, an all-reduce in fp32."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, parallel: Parallel) -> Tensor:
        ctx.parallel = parallel
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0].to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.parallel.tensor_group)
        return gradient.to(gradients[0].dtype), None


_Kept = tuple[Tensor, torch.Size | None]  # this rank's part with the whole's shape, or all of it


def split_over_tensor_ranks(parallel: Parallel) -> contextlib.AbstractContextManager[object]:
    """While inside, what autograd saves is kept as this rank's part, where it can be split alike.

    Meant around `torch.utils.checkpoint` alone, which saves its inputs under these hooks and what is computed in it
    under its own. Unpacking is collective: all ranks go through the same graph.
    """
    if parallel.tensor_size == 1:
        return contextlib.nullcontext()

    def keep(whole: Tensor) -> _Kept:
        if not whole.is_floating_point() or whole.numel() % parallel.tensor_size:
            return whole, None
        parts = whole.detach().reshape(parallel.tensor_size, -1)
        return parts[parallel.tensor_rank].clone(), whole.shape

    def gather(kept: _Kept) -> Tensor:
        own, shape = kept
        if shape is None:
            return own
        whole = own.new_empty(parallel.tensor_size * own.numel())
        dist.all_gather_into_tensor(whole, own, group=parallel.tensor_group)
        return whole.view(shape)

    return saved_tensors_hooks(keep, gather)
