"""Cross entropy's passes over the logits by `csrc/cuda/cross_entropy.cu`.

Shapes: t tokens, v rows of the vocabulary.
"""

from __future__ import annotations

from ctypes import c_int32, c_int64

import torch
from torch import Tensor

from trainer.kernels.cuda.tiles import VECTOR_BYTES, address, suffix
from trainer.kernels.native.launching import Argument, KernelRunner, Launch

# Threads of a block, which has one row: each is to have several vectors under way, and a chip several blocks at once.
_FEWEST_THREADS, _MOST_THREADS = 128, 512
_VECTORS_PER_THREAD = 4
# Of a block's shared memory, for what its sums need beside the row.
_SHARED_BYTES_BESIDE = 1024


class CudaCrossEntropy:
    """`trainer.kernels.cross_entropy.CrossEntropyKernels`. Raises TypeError for a dtype without kernels."""

    def __init__(self, runner: KernelRunner) -> None:
        self._runner = runner

    def statistics(self, logits_tv: Tensor, labels_t: Tensor, first_padding: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the greatest logit, the sum of exp(logit - greatest) and the label's logit, fp32 [t] each."""
        greatest_t, sum_t, label_logit_t = torch.empty(3, len(logits_tv), device=logits_tv.device).unbind()
        if first_padding == 0:  # nothing has a part, and there may be nothing at all
            return greatest_t.fill_(-torch.inf), sum_t.zero_(), label_logit_t.zero_()
        tensors = address(greatest_t), address(sum_t), address(label_logit_t), address(logits_tv), address(labels_t)
        self._start("statistics", logits_tv, *tensors, *_sizes(logits_tv, first_padding))
        return greatest_t, sum_t, label_logit_t

    def to_gradient(
        self, logits_tv: Tensor, labels_t: Tensor, log_sum_t: Tensor, share_t: Tensor, first_padding: int
    ) -> None:
        """Replace logits by share * (exp(logit - log_sum) - [row is the label]); rows of share 0 become 0 unread."""
        tensors = address(logits_tv), address(labels_t), address(log_sum_t), address(share_t)
        self._start("to_gradient", logits_tv, *tensors, *_sizes(logits_tv, first_padding))

    def whole(self, logits_tv: Tensor, labels_t: Tensor, share_t: Tensor, first_padding: int) -> tuple[Tensor, Tensor]:
        """Both at once, where no other rank has a part of the vocabulary: log of the sum, and the label's logit.

        first_padding is at least 1.
        """
        log_sum_t, label_logit_t = torch.empty(2, len(logits_tv), device=logits_tv.device).unbind()
        tensors = address(logits_tv), address(log_sum_t), address(label_logit_t), address(labels_t), address(share_t)
        row_bytes = first_padding * logits_tv.element_size() // VECTOR_BYTES * VECTOR_BYTES
        is_kept = row_bytes <= self._most_row_bytes()
        sizes = *_sizes(logits_tv, first_padding), c_int32(is_kept)
        self._start("whole", logits_tv, *tensors, *sizes, shared_bytes=row_bytes if is_kept else 0)
        return log_sum_t, label_logit_t

    def _most_row_bytes(self) -> int:
        """Return the bytes of the longest row in shared memory: two must fit a multiprocessor, to overlap their
        work.
        """
        facts = self._runner.facts
        of_two = facts.shared_bytes_per_multiprocessor // 2
        return min(of_two, facts.shared_bytes_per_block) - _SHARED_BYTES_BESIDE

    def _start(self, operation: str, logits_tv: Tensor, *arguments: Argument, shared_bytes: int = 0) -> None:
        tokens, rows = logits_tv.shape
        if tokens == 0 or rows == 0:
            return
        vectors = rows * logits_tv.element_size() // VECTOR_BYTES
        threads = _FEWEST_THREADS
        while threads < _MOST_THREADS and threads * _VECTORS_PER_THREAD < vectors:
            threads *= 2
        kernel = f"cross_entropy_{operation}_{suffix(logits_tv.dtype)}"
        self._runner.launch(Launch(kernel, (tokens, 1, 1), (threads, 1, 1), shared_bytes, arguments))


def _sizes(logits_tv: Tensor, first_padding: int) -> tuple[Argument, ...]:
    return c_int64(logits_tv.shape[1]), c_int64(min(first_padding, logits_tv.shape[1]))
