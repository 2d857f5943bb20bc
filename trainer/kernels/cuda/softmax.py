"""Attention's softmax by `csrc/cuda/softmax.cu`.

Shapes: b batch, n heads of this rank, q queries, k keys.
"""

from __future__ import annotations

from ctypes import c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from trainer.kernels.cuda.tiles import VECTOR_BYTES, address, suffix
from trainer.kernels.native.launching import WARP_THREADS, KernelRunner, Launch

MOST_KEYS = 32_768
# As in the kernels: what a thread holds of a row at once, threads of a block, warps (so rows) of a block in that form.
_VALUES_OF_THREAD = 32
_FEWEST_BLOCK_THREADS, _MOST_BLOCK_THREADS = 64, 512
_WARPS = 4
_MOST_ROWS = 2**31 - 1


class CudaSoftmax:
    """`SoftmaxKernels` by launches on a runner's device."""

    def __init__(self, runner: KernelRunner) -> None:
        self._runner = runner

    @staticmethod
    def refuses(keys: int) -> str | None:
        """Why not for so many keys, or None."""
        return f"{keys} keys, where the softmax kernels take at most {MOST_KEYS}" if keys > MOST_KEYS else None

    def forward(
        self, scores_bnqk: Tensor, mask: Tensor | None, scale: float, slopes_n: Tensor | None, causal: bool
    ) -> Tensor:
        """As `SoftmaxKernels.forward`. Raises ValueError for what `refuses` names, and other types or shapes."""
        b, n, q, k = scores_bnqk.shape
        self._check(scores_bnqk)
        if mask is not None and mask.dtype != torch.bool:
            raise ValueError(f"a mask of {mask.dtype}, where softmax takes torch.bool")
        if slopes_n is not None and (slopes_n.dtype != torch.float32 or slopes_n.shape != (n,)):
            raise ValueError(f"slopes of {slopes_n.dtype} {list(slopes_n.shape)}, where softmax takes fp32 [{n}]")
        out = torch.empty_like(scores_bnqk)
        if not out.numel():
            return out
        # By strides: 0 where the mask has one row for many.
        strides = (0, 0, 0, 0) if mask is None else mask.broadcast_to(b, n, q, k).stride()
        of_mask = [c_int64(stride) for stride in strides]
        mask_at = c_void_p(None if mask is None else mask.data_ptr())
        slopes = None if slopes_n is None else slopes_n.contiguous()
        form, grid, block = geometry(b * n * q, k, scores_bnqk)
        self._runner.launch(
            Launch(
                f"softmax_{form}_{suffix(scores_bnqk.dtype)}",
                (grid, 1, 1),
                (block, 1, 1),
                0,
                (
                    *(address(out), address(scores_bnqk), mask_at),
                    *of_mask,
                    address(slopes),
                    c_float(scale),
                    c_int64(b * n * q),
                    *(c_int32(n), c_int32(q), c_int32(k), c_int32(causal)),
                ),
            )
        )
        return out

    def backward(self, gradient_bnqk: Tensor, probabilities_bnqk: Tensor, scale: float, causal: bool) -> Tensor:
        """As `SoftmaxKernels.backward`. Raises ValueError for what `refuses` names, and two dtypes."""
        b, n, q, k = probabilities_bnqk.shape
        self._check(probabilities_bnqk)
        if gradient_bnqk.dtype != probabilities_bnqk.dtype:
            raise ValueError(f"a gradient of {gradient_bnqk.dtype} for a softmax of {probabilities_bnqk.dtype}")
        out = torch.empty_like(probabilities_bnqk)
        if not out.numel():
            return out
        form, grid, block = geometry(b * n * q, k, probabilities_bnqk)
        self._runner.launch(
            Launch(
                f"softmax_backward_{form}_{suffix(probabilities_bnqk.dtype)}",
                (grid, 1, 1),
                (block, 1, 1),
                0,
                (
                    *(address(out), address(gradient_bnqk), address(probabilities_bnqk), c_float(scale)),
                    *(c_int64(b * n * q), c_int32(q), c_int32(k), c_int32(causal)),
                ),
            )
        )
        return out

    def _check(self, scores_bnqk: Tensor) -> None:
        why_not = self.refuses(scores_bnqk.shape[-1])
        if why_not:
            raise ValueError(why_not)
        if scores_bnqk.shape[:-1].numel() > _MOST_ROWS:
            raise ValueError(f"scores of {list(scores_bnqk.shape)}: more than {_MOST_ROWS} rows for one softmax")


def geometry(rows: int, keys: int, scores: Tensor) -> tuple[str, int, int]:
    """(form of the kernel, blocks, threads of a block): see the table at the head of the source."""
    width = VECTOR_BYTES // scores.element_size()
    starts_whole = scores.data_ptr() % VECTOR_BYTES == 0 and keys % width == 0
    reach = keys if starts_whole else keys + width - 1  # of the vectors that a row may lie in
    if reach <= WARP_THREADS * _VALUES_OF_THREAD:
        return "warp", -(-rows // _WARPS), _WARPS * WARP_THREADS
    if reach <= _MOST_BLOCK_THREADS * _VALUES_OF_THREAD:
        warps = -(-reach // (WARP_THREADS * _VALUES_OF_THREAD))
        return "block", rows, max(_FEWEST_BLOCK_THREADS, warps * WARP_THREADS)
    return "tiles", rows, _MOST_BLOCK_THREADS
