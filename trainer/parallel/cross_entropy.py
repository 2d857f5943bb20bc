"""The output layer and its cross entropy in one function, chunk by chunk, over a vocabulary split over tensor ranks.

Never more than one chunk of logits exists, and each gradient is made while its logits are at hand: in the forward pass.
So they are made for what the engine will multiply the loss by, and the weight's is added to the engine's own fp32 sum
where it has one: nothing as large as the weight is held for it, and fp16 gradients carry the loss scale from where they
are made. Rows that only pad the vocabulary have no part in the softmax, and their gradient is exactly 0.

Shapes: t tokens, h hidden, v rows of the vocabulary that this rank has, padding included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.kernels.cross_entropy import Statistics, statistics, to_gradient
from trainer.parallel.process_groups import Parallel
from trainer.parallel.products import add_gradient_of_weight, gradient_of_x, is_slow_half, logits_into
from trainer.parallel.sequence import gathered
from trainer.recipe.activations import chunk_tokens, chunks_of

#: fp16 gradients of logits are lifted by a power of two until a token's label has 2^5 to 2^6, where all labels count: a
#: probability of 2^-20 is a normal number then, and a thousandth of the labels may count before the largest is none.
_FP16_LABEL_EXPONENT = 6


class Accumulation(Protocol):
    """The engine's treatment of a micro-batch's loss, read in its forward pass; its backward pass must follow."""

    def multiplier(self) -> float:
        """Return the factor of the loss before the backward pass: loss scale / micro-batches of a step."""

    def weight_sum(self) -> tuple[Tensor, bool] | None:
        """Its fp32 sum [v, h] of the output layer's gradients, and whether it is to be overwritten: nothing is in it.

        None where it has no such sum, and takes what autograd gives it.
        """


def masked_mean_cross_entropy(
    x_bsh: Tensor,
    weight_vh: Tensor,
    labels_bs: Tensor,
    mask_bs: Tensor,
    vocabulary: int,
    parallel: Parallel,
    counted: Tensor | None = None,
    factor: float = 1.0,
    accumulation: Accumulation | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    """Return factor * sum(mask * -log softmax(x @ weight.T)[label]) / counted, fp32; 0 when the mask is all 0.

    counted: fp32 scalar, the average number of labels that count in a micro-batch of this global batch; sum(mask)
    without it. x_bsh: whole, or this rank's slice if the ranks split the sequence; labels and mask are whole in either
    case. weight_vh: this rank's rows of the word embedding. mask_bs: 1 if the label counts. vocabulary: the number of
    tokens; the rows from there on, counted over all ranks, are padding. The same value on every rank.

    z_loss: gradients are those of the loss plus this times the mean of log(sum(exp(logits)))^2, over the same labels;
    the value is without. Source: Chowdhery et al., arXiv 2204.02311, section 5.

    With an `accumulation` that has a sum, the weight's gradient is in it when this returns, and autograd gets none. A
    backward pass with another multiplier than announced gives NaN gradients; a second one raises RuntimeError.
    """
    mask_t = mask_bs.reshape(-1).float()
    share_t = mask_t * (factor / (mask_t.sum() if counted is None else counted).clamp(min=1e-20))
    if parallel.splits_sequence:
        x_bsh = gathered(x_bsh, parallel)
    x_th = x_bsh.reshape(-1, x_bsh.shape[-1])
    wants_gradient = torch.is_grad_enabled() and (x_th.requires_grad or weight_vh.requires_grad)
    purpose = _Purpose.of(accumulation) if wants_gradient else None
    if purpose is not None and purpose.sum_vh is not None:
        weight_vh = weight_vh.detach()
    loss: Tensor = _LinearCrossEntropy.apply(
        x_th, weight_vh, labels_bs.reshape(-1), share_t, vocabulary, parallel, purpose, z_loss
    )
    return loss


@dataclass(frozen=True)
class _Purpose:
    """The purpose of the gradients: unchanged, or for an engine that multiplies the loss, and may have a sum."""

    multiplier: float | None = None
    sum_vh: Tensor | None = None
    is_first: bool = True  # of what is added to the sum

    @classmethod
    def of(cls, accumulation: Accumulation | None) -> _Purpose:
        if accumulation is None:
            return cls()
        multiplier, found = accumulation.multiplier(), accumulation.weight_sum()
        return cls(multiplier) if found is None else cls(multiplier, *found)


class _LinearCrossEntropy(torch.autograd.Function):
    """sum over t of share_t * cross entropy of token t."""

    @staticmethod
    def forward(
        ctx: Any,
        x_th: Tensor,
        weight_vh: Tensor,
        labels_t: Tensor,
        share_t: Tensor,
        vocabulary: int,
        parallel: Parallel,
        purpose: _Purpose | None,
        z_loss: float,
    ) -> Tensor:
        rows = weight_vh.shape[0]
        first_padding = min(rows, max(0, vocabulary - parallel.tensor_rank * rows))  # rows, where none is padding
        local_t = _local_labels(labels_t, rows, parallel)
        making = None if purpose is None else _Gradients(x_th, weight_vh, share_t, purpose, parallel)
        tokens, device = x_th.shape[0], x_th.device.type
        dtype = torch.float32 if parallel.operations.cross_entropy is None or is_slow_half(x_th) else x_th.dtype
        logits = x_th.new_empty(chunk_tokens(tokens, rows, device), rows, dtype=dtype)
        loss = torch.zeros((), dtype=torch.float32, device=x_th.device)
        for part in chunks_of(tokens, rows, device):
            logits_tv = logits[: part.stop - part.start]
            logits_into(logits_tv, x_th[part], weight_vh)
            labels, share = local_t[part], None if making is None else making.coefficient_t[part]
            log_sum_t, label_logit_t = _of_chunk(logits_tv, labels, share, first_padding, parallel, z_loss)
            loss += ((log_sum_t - label_logit_t) * share_t[part]).sum()
            if making is not None:
                making.add(part, logits_tv)
        if making is not None:
            ctx.save_for_backward(*making.finished())
            ctx.purpose, ctx.weight_dtype, ctx.is_done = purpose, weight_vh.dtype, False
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        multiplier = ctx.purpose.multiplier
        if multiplier is None:
            found = [_times(one, gradients[0]) for one in ctx.saved_tensors]
        elif ctx.is_done:
            raise RuntimeError("the engine has had the gradients of this loss: it has one backward pass")
        else:
            found, ctx.is_done = list(ctx.saved_tensors), True
            # What is in the engine's sum cannot be multiplied any more: rather no number than a wrong one.
            is_as_said = torch.where((gradients[0] / multiplier - 1).abs() < 1e-5, 1.0, torch.nan)
            for one in found:
                one.mul_(is_as_said)
        return (found[0], found[1] if len(found) > 1 else None, None, None, None, None, None, None)


class _Gradients:
    """Those of x and of the weight, chunk by chunk: times `lift` and what the purpose multiplies by, until finished."""

    def __init__(self, x_th: Tensor, weight_vh: Tensor, share_t: Tensor, purpose: _Purpose, parallel: Parallel) -> None:
        self._x_th, self._weight_vh, self._purpose, self._parallel = x_th, weight_vh, purpose, parallel
        multiplier = 1.0 if purpose.multiplier is None else purpose.multiplier
        self._lift = lift_of(multiplier / x_th.shape[0]) if x_th.dtype == torch.float16 else 1.0
        self.coefficient_t = share_t * (multiplier * self._lift)
        self._of_x = torch.empty_like(x_th)
        self._is_first = purpose.is_first
        self._of_weight = purpose.sum_vh
        if self._of_weight is None:
            self._of_weight = torch.empty_like(weight_vh, dtype=torch.float32)
        # What the ranks' vocabularies want of x, chunk by chunk beside the next one's products.
        self._summing: list[Any] = []

    def add(self, part: slice, gradient_tv: Tensor) -> None:
        """Add the contribution of a chunk's gradient of its logits to both."""
        if not is_slow_half(self._x_th):
            gradient_tv = gradient_tv.to(self._x_th.dtype)
        of_part = self._of_x[part]
        of_part.copy_(gradient_of_x(gradient_tv, self._weight_vh))
        if self._parallel.tensor_size > 1 and not self._parallel.splits_sequence:  # slices' are summed as they part
            self._summing.append(dist.all_reduce(of_part, group=self._parallel.tensor_group, async_op=True))
        assert self._of_weight is not None
        add_gradient_of_weight(self._of_weight, gradient_tv, self._x_th[part], 1 / self._lift, self._is_first)
        self._is_first = False

    def finished(self) -> tuple[Tensor, ...]:
        """Return the tensors for the backward pass, in the dtypes of x and weight, without those in a sum already."""
        for one in self._summing:
            one.wait()
        if self._lift != 1:
            self._of_x.mul_(1 / self._lift)
        if self._purpose.sum_vh is not None:
            return (self._of_x,)
        assert self._of_weight is not None
        return self._of_x, self._of_weight.to(self._weight_vh.dtype)


def lift_of(of_label: float) -> float:
    """Return the power of two that scales a label's gradient to 2^5 or more, below 2^6."""
    return 2.0 ** (_FP16_LABEL_EXPONENT - math.frexp(of_label)[1])


def _times(gradient: Tensor, ratio: Tensor) -> Tensor:
    """In fp32, as a loss scale may be beyond what 16 bits hold: the product of each number, and no copy of them all."""
    return torch.mul(gradient, ratio.reshape(1), out=torch.empty_like(gradient))


def _of_chunk(
    logits_tv: Tensor, labels_t: Tensor, share_t: Tensor | None, first_padding: int, parallel: Parallel, z_loss: float
) -> tuple[Tensor, Tensor]:
    """Return each token's log of the sum of exp(logit), and its label's logit; with a share, logits become
    gradients.
    """
    kernels = parallel.operations.cross_entropy
    if kernels is not None and share_t is not None and parallel.tensor_size == 1 and not z_loss:
        return kernels.whole(logits_tv, labels_t, share_t, first_padding)
    own = statistics(logits_tv, labels_t, first_padding, kernels)
    log_sum_t, label_logit_t = _over_all_ranks(own, parallel)
    if share_t is not None:
        # The gradient of the z-loss is a multiple of the softmax: that of a greater share, less what its label has.
        of_z_t = share_t * (2 * z_loss) * log_sum_t
        to_gradient(logits_tv, labels_t, own.greatest_t, log_sum_t, share_t + of_z_t, first_padding, kernels)
        if z_loss:
            of_label_t = of_z_t.masked_fill(labels_t < 0, 0).to(logits_tv.dtype)
            logits_tv.scatter_add_(1, labels_t.clamp(min=0).unsqueeze(-1), of_label_t.unsqueeze(-1))
    return log_sum_t, label_logit_t


def _over_all_ranks(own: Statistics, parallel: Parallel) -> tuple[Tensor, Tensor]:
    """Return for each token the log of the sum of exp(logit), and its label's logit."""
    greatest_t, sum_t, label_logit_t = own
    if parallel.tensor_size > 1:
        greatest_t = greatest_t.clone()
        dist.all_reduce(greatest_t, op=dist.ReduceOp.MAX, group=parallel.tensor_group)
        both = torch.stack((sum_t * (own.greatest_t - greatest_t).exp(), label_logit_t))
        dist.all_reduce(both, group=parallel.tensor_group)
        sum_t, label_logit_t = both
    return greatest_t + sum_t.log(), label_logit_t


def _local_labels(labels_t: Tensor, rows: int, parallel: Parallel) -> Tensor:
    """Labels as rows of this rank's weight, -1 for others'."""
    if parallel.tensor_size == 1:
        return labels_t
    local_t = labels_t - parallel.tensor_rank * rows
    return local_t.masked_fill_((local_t < 0) | (local_t >= rows), -1)
