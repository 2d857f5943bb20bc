"""Attention's softmax with scale, mask and ALiBi in one pass, for where attention is not one fused kernel.

A row of which no key counts, as each is masked, hidden by causality or has a score of -inf, gives zeros and no
gradient. Source of ALiBi: Press et al., arXiv 2108.12409; the softmax does not see what a whole row has in common, so
slope x key position stands for slope x distance.

Shapes: b batch, n heads of this rank, q queries, k keys; with `causal`, query i sees keys j <= i + k - q.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class SoftmaxKernels(Protocol):
    """Kernels for the softmax. Scores are contiguous.

    The mask, of any strides, is bool [b or 1, n or 1, q or 1, k], true for hidden keys.
    """

    def forward(
        self, scores_bnqk: Tensor, mask: Tensor | None, scale: float, slopes_n: Tensor | None, causal: bool
    ) -> Tensor:
        """softmax(scale * scores + slopes * key position), in the dtype of the scores; slopes are fp32."""

    def backward(self, gradient_bnqk: Tensor, probabilities_bnqk: Tensor, scale: float, causal: bool) -> Tensor:
        """Return scale * p * (gradient - sum(p * gradient))."""


def scaled_softmax(
    scores_bnqk: Tensor,
    mask: Tensor | None,
    scale: float,
    slopes_n: Tensor | None,
    causal: bool,
    kernels: SoftmaxKernels | None,
) -> Tensor:
    """Softmax over keys of `scale * scores`, masked keys left out, ALiBi added where slopes are given; sums in fp32.

    scores: [b, n, q, k]. mask: as `SoftmaxKernels` has it. slopes_n: fp32, of this rank's heads.
    """
    if kernels is None:
        return _by_torch(scores_bnqk, mask, scale, slopes_n, causal)
    probabilities: Tensor = _Softmax.apply(scores_bnqk.contiguous(), mask, scale, slopes_n, causal, kernels)
    return probabilities


def _by_torch(scores_bnqk: Tensor, mask: Tensor | None, scale: float, slopes_n: Tensor | None, causal: bool) -> Tensor:
    queries, keys = scores_bnqk.shape[-2:]
    wide = torch.promote_types(scores_bnqk.dtype, torch.float32)
    scores = scores_bnqk.to(wide) * scale
    position_k = torch.arange(keys, device=scores.device)
    last_q1 = torch.arange(keys - queries, keys, device=scores.device).unsqueeze(1) if causal else keys - 1
    if slopes_n is not None:
        # From the last key that is seen: the numbers of near keys, which count most, are small and exact.
        scores = torch.addcmul(scores, slopes_n.to(wide).view(-1, 1, 1), (position_k - last_q1).to(wide))
    if causal:
        scores = scores.masked_fill(position_k > last_q1, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(mask, -torch.inf)
    nothing_counts = scores.amax(dim=-1, keepdim=True) == -torch.inf
    # A row without any key would be 0 / 0, in the backward pass too: it is computed of zeros, and then left out.
    weights = scores.masked_fill(nothing_counts, 0).softmax(dim=-1)
    return weights.masked_fill(nothing_counts, 0).to(scores_bnqk.dtype)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        mask: Tensor | None,
        scale: float,
        slopes: Tensor | None,
        causal: bool,
        kernels: SoftmaxKernels,
    ) -> Tensor:
        probabilities = kernels.forward(scores, mask, scale, slopes, causal)
        ctx.save_for_backward(probabilities)
        ctx.scale, ctx.causal, ctx.kernels = scale, causal, kernels
        return probabilities

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        (probabilities,) = ctx.saved_tensors
        of_scores = ctx.kernels.backward(gradients[0].contiguous(), probabilities, ctx.scale, ctx.causal)
        return of_scores, None, None, None, None, None
