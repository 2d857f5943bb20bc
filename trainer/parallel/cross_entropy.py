"""The output layer and its cross entropy in one function, chunk by chunk, over a vocabulary split over tensor ranks.

Never more than one chunk of logits exists, and each gradient is made while its logits are at hand. Sums are in fp32.
Rows that only pad the vocabulary have no part in the softmax, and their gradient is exactly 0.

Shapes: t tokens, h hidden, v rows of the vocabulary that this rank has, padding included.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.parallel.process_groups import Parallel
from trainer.parallel.products import matmul
from trainer.parallel.sequence import gathered
from trainer.recipe.activations import CHUNK_LOGITS


def masked_mean_cross_entropy(
    x_bsh: Tensor,
    weight_vh: Tensor,
    labels_bs: Tensor,
    mask_bs: Tensor,
    vocabulary: int,
    parallel: Parallel,
    counted: Tensor | None = None,
) -> Tensor:
    """sum(mask * -log softmax(x @ weight.T)[label]) / counted, fp32; 0 when the mask is all 0.

    counted: fp32 scalar, how many labels count in a micro-batch of this global batch, on average; sum(mask) without it.
    x_bsh: whole, or this rank's slice where the ranks split the sequence; labels and mask are whole in either case.
    weight_vh: this rank's rows of the word embedding. mask_bs: 1 where the label counts. vocabulary: how many tokens
    there are; the rows from there on, counted over all ranks, are padding. The same value on every rank.
    """
    mask_t = mask_bs.reshape(-1).float()
    share_t = mask_t / (mask_t.sum() if counted is None else counted).clamp(min=1e-20)
    if parallel.splits_sequence:
        x_bsh = gathered(x_bsh, parallel)
    x_th = x_bsh.reshape(-1, x_bsh.shape[-1])
    loss: Tensor = _LinearCrossEntropy.apply(x_th, weight_vh, labels_bs.reshape(-1), share_t, vocabulary, parallel)
    return loss


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
    ) -> Tensor:
        tokens, rows = x_th.shape[0], weight_vh.shape[0]
        first_padding = max(0, vocabulary - parallel.tensor_rank * rows)  # of this rank's rows, or none of them
        wants_gradient = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        chunk = max(1, min(tokens, CHUNK_LOGITS[x_th.device.type] // rows))
        gradient_x = torch.empty_like(x_th) if wants_gradient else None
        gradient_weight: Tensor | None = None
        loss = torch.zeros((), dtype=torch.float32, device=x_th.device)
        summing: list[Any] = []  # what the ranks' vocabularies want of x, chunk by chunk beside the next one's products
        for start in range(0, tokens, chunk):
            part = slice(start, start + chunk)
            logits_tv = matmul(x_th[part], weight_vh.t()).float()
            logits_tv[:, first_padding:] = -torch.inf
            losses_t = _to_probabilities(logits_tv, labels_t[part], rows, parallel)
            loss += (losses_t * share_t[part]).sum()
            if gradient_x is None:
                continue
            _to_gradient(logits_tv, labels_t[part], share_t[part], rows, parallel)
            gradient_tv = logits_tv.to(x_th.dtype)
            gradient_x[part] = matmul(gradient_tv, weight_vh)
            if parallel.tensor_size > 1 and not parallel.splits_sequence:  # slices' gradients are summed as they part
                summing.append(dist.all_reduce(gradient_x[part], group=parallel.tensor_group, async_op=True))
            gradient_weight = _accumulated(gradient_weight, gradient_tv, x_th[part])
        for one in summing:
            one.wait()
        if gradient_x is not None:
            ctx.save_for_backward(gradient_x, gradient_weight)
            ctx.weight_dtype = weight_vh.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient_x, gradient_weight = ctx.saved_tensors
        upstream = gradients[0]
        return (
            gradient_x * upstream.to(gradient_x.dtype),
            (gradient_weight * upstream).to(ctx.weight_dtype),
            None,
            None,
            None,
            None,
        )


def _to_probabilities(logits_tv: Tensor, labels_t: Tensor, rows: int, parallel: Parallel) -> Tensor:
    """Cross entropy per token; `logits_tv` becomes this rank's part of the softmax, in place."""
    highest_t = logits_tv.max(dim=-1).values
    if parallel.tensor_size > 1:
        dist.all_reduce(highest_t, op=dist.ReduceOp.MAX, group=parallel.tensor_group)
    logits_tv -= highest_t.unsqueeze(-1)
    local_t, elsewhere_t = _local_labels(labels_t, rows, parallel)
    label_logit_t = logits_tv.gather(1, local_t.unsqueeze(-1)).squeeze(-1)
    if elsewhere_t is not None:
        label_logit_t.masked_fill_(elsewhere_t, 0)
    sum_t = logits_tv.exp_().sum(dim=-1)
    if parallel.tensor_size > 1:
        both = torch.stack((sum_t, label_logit_t))
        dist.all_reduce(both, group=parallel.tensor_group)
        sum_t, label_logit_t = both
    logits_tv /= sum_t.unsqueeze(-1)
    return sum_t.log() - label_logit_t


def _to_gradient(probabilities_tv: Tensor, labels_t: Tensor, share_t: Tensor, rows: int, parallel: Parallel) -> None:
    """share * (softmax - one-hot label), in place."""
    local_t, elsewhere_t = _local_labels(labels_t, rows, parallel)
    ones_t = torch.ones_like(share_t) if elsewhere_t is None else (~elsewhere_t).to(share_t.dtype)
    probabilities_tv.scatter_add_(1, local_t.unsqueeze(-1), -ones_t.unsqueeze(-1))
    probabilities_tv *= share_t.unsqueeze(-1)


def _local_labels(labels_t: Tensor, rows: int, parallel: Parallel) -> tuple[Tensor, Tensor | None]:
    """Labels as rows of this rank's weight (0 for others'), and which are others'; None when all are here."""
    if parallel.tensor_size == 1:
        return labels_t, None
    local_t = labels_t - parallel.tensor_rank * rows
    elsewhere_t = (local_t < 0) | (local_t >= rows)
    return local_t.masked_fill(elsewhere_t, 0), elsewhere_t


def _accumulated(total: Tensor | None, gradient_tv: Tensor, x_th: Tensor) -> Tensor:
    """total + gradient.T @ x in fp32."""
    if total is None:
        return matmul(gradient_tv.t(), x_th).float()
    if gradient_tv.dtype == torch.float32:
        return total.addmm_(gradient_tv.t(), x_th)
    return total.add_(matmul(gradient_tv.t(), x_th))
