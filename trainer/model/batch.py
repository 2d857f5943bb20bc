"""Samples as the engine takes them."""

from __future__ import annotations

import torch
from torch import Tensor

#: Tokens alone or with the index of the first sample, and (labels, mask).
EngineItem = tuple[Tensor | tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def engine_item(samples: Tensor, end_of_document: int | None = None, first_sample: int | None = None) -> EngineItem:
    """One micro-batch of samples, [micro-batch, sequence + 1] token ids, as (tokens_bs, (labels_bs, mask_bs)).

    With `first_sample`, the index in the training of its first sample, it is ((tokens_bs, [first_sample]), ...): a
    model with dropout trains on these, and its stages pass the index on. The label of each token is the next one; the
    mask (fp32) is 1 where the label counts: everywhere, or, with `end_of_document` (for --eod-mask-loss), not where the
    input is that token.
    """
    samples = samples.long()
    tokens_bs, labels_bs = samples[:, :-1].contiguous(), samples[:, 1:].contiguous()
    mask_bs = torch.ones(tokens_bs.shape, dtype=torch.float32, device=samples.device)
    if end_of_document is not None:
        mask_bs[tokens_bs == end_of_document] = 0
    inputs = tokens_bs if first_sample is None else (tokens_bs, torch.tensor([first_sample]))
    return inputs, (labels_bs, mask_bs)
