"""Layers whose weights are split over the tensor-parallel ranks, after Megatron-LM (Shoeybi et al., arXiv 1909.08053).

A column-parallel layer splits the output, a row-parallel one the input; one after the other needs one all-reduce in
each direction. Split parameters carry `tensor_model_parallel = True` and `partition_dim`, the names that DeepSpeed and
Megatron look for.

Shapes: b batch, s sequence, i input, o output, v vocabulary of this rank.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.parallel.initialization import initial_weight
from trainer.parallel.process_groups import Parallel
from trainer.parallel.products import linear, products_of_copy
from trainer.parallel.sequence import gradient_of_all_slices, products_of_gathered, sum_to_slices
from trainer.recipe.parameters import Parameter


class _CopyToTensorRanks(torch.autograd.Function):
    """The same input on every rank; backward, the sum of what the ranks' parts want of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _SumOverTensorRanks(torch.autograd.Function):
    """The sum of the ranks' partial results; backward, the gradient as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        total = x.contiguous()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def copy_to_tensor_ranks(x: Tensor, parallel: Parallel) -> Tensor:
    """Identity forward, all-reduce backward: where a replicated tensor enters split layers."""
    return x if parallel.tensor_size == 1 else _CopyToTensorRanks.apply(x, parallel.tensor_group)


def sum_over_tensor_ranks(x: Tensor, parallel: Parallel) -> Tensor:
    """All-reduce forward, identity backward: where split layers' partial results meet. Overwrites `x`."""
    return x if parallel.tensor_size == 1 else _SumOverTensorRanks.apply(x, parallel.tensor_group)


def partial_sums_meet(x_bsh: Tensor, parallel: Parallel) -> Tensor:
    """Return the sum of the ranks' partial results: this rank's slice if they split the sequence, else all of it."""
    return sum_to_slices(x_bsh, parallel) if parallel.splits_sequence else sum_over_tensor_ranks(x_bsh, parallel)


def initial_parameter(entry: Parameter, seed: int, parallel: Parallel, dtype: torch.dtype) -> nn.Parameter:
    """Return this rank's part of the parameter `entry` at the start of a training.

    The whole depends on seed and name alone, so every layout starts from the same model: rows that pad the vocabulary
    are 0, and the tokens' rows do not depend on the number of padding rows. Raises ValueError if the ranks cannot share
    it evenly. The parameter itself records how it is split, and whether it `decays`.
    """
    shape, dim = entry.rank_shape(parallel.tensor_size), entry.split_dim
    if entry.initial_std:
        first = 0 if dim is None else parallel.tensor_rank * shape[dim]
        drawn = initial_weight(
            entry.full_name,
            entry.shape,
            entry.initial_std,
            seed,
            dim or 0,
            first,
            shape[dim or 0],
            drawn_rows=entry.token_rows,
        )
    else:
        drawn = torch.full(shape, entry.initial_mean)
    parameter = nn.Parameter(drawn.to(dtype))
    parameter.decays = entry.decays  # type: ignore[attr-defined]
    if dim is not None:
        parameter.tensor_model_parallel = parallel.tensor_size > 1  # type: ignore[attr-defined]
        parameter.partition_dim = dim  # type: ignore[attr-defined]
    return parameter


class ColumnParallelLinear(nn.Module):
    """y_bso = x_bsi @ weight.T + bias with the output split over the ranks: y is this rank's part.

    x is whole, or this rank's slice of the sequence where the ranks split it.
    """

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, parallel: Parallel) -> None:
        super().__init__()
        self.parallel, self.weight, self.bias = parallel, weight, bias

    def forward(self, x_bsi: Tensor) -> Tensor:
        """x_bsi -> y_bso of the whole sequence with o / tensor_size outputs of this rank's. Backward is collective."""
        return side_by_side(x_bsi, [self])[0]

    def without_bias(self, x_bsi: Tensor) -> Tensor:
        """Return the output without the bias, which the next operation adds. Backward is collective."""
        return side_by_side(x_bsi, [self], with_bias=False)[0]


def side_by_side(x_bsi: Tensor, layers: list[ColumnParallelLinear], with_bias: bool = True) -> list[Tensor]:
    """Return the layers' outputs for one input, gathered if it is a slice; backward is collective once for all."""
    products = products_of_gathered if layers[0].parallel.splits_sequence else products_of_copy
    return products(x_bsi, [(one.weight, one.bias if with_bias else None) for one in layers], layers[0].parallel)


class RowParallelLinear(nn.Module):
    """y_bso = sum over ranks of x_bsi @ weight.T, + bias: x is this rank's part. The bias is not split.

    y is whole, or this rank's slice of the sequence where the ranks split it. leaves_bias: to kernels that add the
    residual: its sum, and its gradient's, come in the passes that they make anyway.
    """

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, parallel: Parallel, leaves_bias: bool = False
    ) -> None:
        super().__init__()
        self.parallel, self.weight, self.bias, self.leaves_bias = parallel, weight, bias, leaves_bias

    def forward(self, x_bsi: Tensor) -> Tensor:
        """x_bsi with this rank's i / tensor_size inputs -> y_bso, but for `left_bias`. Collective."""
        bias = None if self.leaves_bias else self.bias
        if self.parallel.tensor_size == 1:
            return linear(x_bsi, self.weight, bias)
        y_bso = partial_sums_meet(linear(x_bsi, self.weight), self.parallel)
        return y_bso if bias is None else y_bso + gradient_of_all_slices(bias, self.parallel)

    def left_bias(self) -> Tensor | None:
        """Return the bias [o] for the next operation to add, or None. Its backward is collective if ranks have
        slices.
        """
        if self.bias is None or not self.leaves_bias:
            return None
        return gradient_of_all_slices(self.bias, self.parallel)


class VocabParallelEmbedding(nn.Module):
    """Rows of the vocabulary split over the ranks; every rank returns x_bsh, through `norm` if there is one.

    It is whole, or this rank's slice of the sequence where the ranks split it.
    `norm` lives here because Megatron-DeepSpeed names it `word_embeddings.norm`.
    """

    def __init__(self, weight: nn.Parameter, vocabulary: int, parallel: Parallel) -> None:
        """`vocabulary`: how many tokens there are. The rows behind them, over all ranks, are padding."""
        super().__init__()
        self.parallel, self.weight, self.vocabulary = parallel, weight, vocabulary
        self.norm: nn.Module | None = None

    def forward(self, tokens_bs: Tensor) -> Tensor:
        """tokens_bs (int64) -> x_bsh. Collective. Raises ValueError for a token beyond the vocabulary, on a CPU."""
        x_bsh = self._rows(tokens_bs)
        return x_bsh if self.norm is None else cast(Tensor, self.norm(x_bsh))

    def _rows(self, tokens_bs: Tensor) -> Tensor:
        if tokens_bs.device.type == "cpu" and int(tokens_bs.max()) >= self.vocabulary:
            raise ValueError(
                f"token {int(tokens_bs.max())} in the data, but the model's vocabulary has {self.vocabulary}: "
                "was the data prepared with another tokenizer?"
            )
        if self.parallel.tensor_size == 1:
            return nn.functional.embedding(tokens_bs, self.weight)
        rows = self.weight.shape[0]
        local_bs = tokens_bs - self.parallel.tensor_rank * rows
        elsewhere_bs = (local_bs < 0) | (local_bs >= rows)
        found_bsh = nn.functional.embedding(local_bs.masked_fill(elsewhere_bs, 0), self.weight)
        return partial_sums_meet(found_bsh.masked_fill(elsewhere_bs.unsqueeze(-1), 0), self.parallel)
