"""What recomputation starts from, split over the tensor-parallel ranks until the backward pass asks for it.

Every one of these ranks has the same input of each block. Kept whole on all of them it is tensor_size copies of one
thing; here each keeps its part, and one all-gather in the backward pass makes it whole again, bit for bit.
"""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from trainer.parallel.process_groups import Parallel

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
