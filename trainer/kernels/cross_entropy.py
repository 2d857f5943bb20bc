"""Cross entropy over a vocabulary that tensor-parallel ranks may have split, on logits that become their gradient.

Two passes over the logits with the ranks' exchange between them: what a token's row says of itself, and, once the sum
over all ranks is known, its gradient. Sums are in fp32.

Shapes: t tokens, v rows of the vocabulary that this rank has, padding included.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class CrossEntropyKernels(Protocol):
    """Kernels for the cross entropy.

    Logits are contiguous [t, v] in fp32, fp16 or bf16; labels are int64 rows of this rank's, negative if the label is
    another rank's. Rows from `first_padding` on have no part, and their gradient is exactly 0.
    """

    def statistics(self, logits_tv: Tensor, labels_t: Tensor, first_padding: int) -> tuple[Tensor, Tensor, Tensor]:
        """fp32 [t] each: the greatest logit, the sum of exp(logit - greatest), the label's logit (0 if elsewhere).

        Where this rank has padding alone, the greatest is -inf and the sum 0.
        """

    def to_gradient(
        self, logits_tv: Tensor, labels_t: Tensor, log_sum_t: Tensor, share_t: Tensor, first_padding: int
    ) -> None:
        """Replace logits by share * (exp(logit - log_sum) - [row is the label]); log_sum and share are fp32 [t]."""

    def whole(self, logits_tv: Tensor, labels_t: Tensor, share_t: Tensor, first_padding: int) -> tuple[Tensor, Tensor]:
        """Both at once, where no other rank has a part: the log of all exp(logit), the label's logit, fp32 [t]."""


class Statistics(NamedTuple):
    """The statistics of this rank's logits of each token, fp32 [t]: as `CrossEntropyKernels.statistics` has them."""

    greatest_t: Tensor
    sum_t: Tensor
    label_logit_t: Tensor


def statistics(
    logits_tv: Tensor, labels_t: Tensor, first_padding: int, kernels: CrossEntropyKernels | None
) -> Statistics:
    """Compute each row's statistics. Without kernels fp32 logits become exp(logit - greatest) for `to_gradient`."""
    if kernels is not None:
        return Statistics(*kernels.statistics(logits_tv, labels_t, first_padding))
    logits_tv[:, first_padding:] = -torch.inf
    greatest_t = logits_tv.amax(dim=-1)
    label_logit_t = logits_tv.gather(1, labels_t.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    label_logit_t.masked_fill_(labels_t < 0, 0)
    # A rank with padding alone would have -inf less -inf.
    logits_tv.sub_(greatest_t.masked_fill(greatest_t == -torch.inf, 0).unsqueeze(-1)).exp_()
    return Statistics(greatest_t, logits_tv.sum(dim=-1), label_logit_t)


def to_gradient(
    logits_tv: Tensor,
    labels_t: Tensor,
    greatest_t: Tensor,
    log_sum_t: Tensor,
    share_t: Tensor,
    first_padding: int,
    kernels: CrossEntropyKernels | None,
) -> None:
    """Replace logits by share * (softmax - [row is the label]), after `statistics`, whose greatest logits these are.

    log_sum_t: log of the sum of exp(logit) over all ranks.
    """
    if kernels is not None:
        kernels.to_gradient(logits_tv, labels_t, log_sum_t, share_t, first_padding)
        return
    logits_tv.mul_((share_t * (greatest_t - log_sum_t).exp()).unsqueeze(-1))
    of_label_t = share_t.masked_fill(labels_t < 0, 0)
    logits_tv.scatter_add_(1, labels_t.clamp(min=0).unsqueeze(-1), -of_label_t.unsqueeze(-1))
