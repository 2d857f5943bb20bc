"""LayerNorm and RMSNorm by `csrc/cuda/normalization.cu` and `normalization_backward.cu`.

Shapes: r rows, h hidden.
"""

from __future__ import annotations

from ctypes import c_float, c_int32, c_int64
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.kernels.cuda.tiles import VECTOR_BYTES, address, is_aligned, suffix
from trainer.kernels.native.launching import WARP_THREADS, Argument, DeviceFacts, KernelRunner, Launch

MOST_HIDDEN = 32_768
# As in the kernels: what a thread holds of a row at once, and threads of a block, which in the `warp` form are rows.
_VALUES_OF_THREAD = 32
_MOST_BLOCK_THREADS = 512
_WARP_FORM_THREADS = 128
# Vectors of a row that a thread of the backward pass holds, by form.
_WARP_VECTORS, _NARROW_VECTORS, _BLOCK_VECTORS, _WIDE_VECTORS = 4, 1, 2, 4
# Registers that a thread of the backward pass is given, rounded up; and the bytes of rows that are to be under way to a
# multiprocessor for its memory not to wait for it (a chip's rate times its latency, over its multiprocessors, doubled).
_REGISTERS = {"warp": 168, "narrow": 64, "block": 128, "wide": 128, "tiles": 64}
_BYTES_UNDER_WAY = 32 << 10
_STATIC_SHARED_BYTES = 1 << 10


class CudaNorms:
    """`NormKernels` by launches on a runner's device."""

    def __init__(self, runner: KernelRunner) -> None:
        self._runner = runner

    @staticmethod
    def refuses(hidden: int) -> str | None:
        """Why not for rows of `hidden` elements, or None."""
        if hidden > MOST_HIDDEN:
            return f"rows of {hidden} elements, where the norm kernels take at most {MOST_HIDDEN}"
        return None

    def forward(
        self, x_rh: Tensor, weight_h: Tensor, bias_h: Tensor | None, epsilon: float, rms: bool
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """As `NormKernels.forward`. Raises ValueError for what `refuses` names, and several dtypes."""
        _, y_rh, mean_r, deviation_r = self._forward(x_rh, None, weight_h, bias_h, epsilon, rms)
        return y_rh, mean_r, deviation_r

    def add_forward(
        self, x_rh: Tensor, residual_rh: Tensor, weight_h: Tensor, bias_h: Tensor | None, epsilon: float, rms: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """As `NormKernels.add_forward`. Raises ValueError for what `refuses` names, and several dtypes."""
        total_rh, y_rh, mean_r, deviation_r = self._forward(x_rh, residual_rh, weight_h, bias_h, epsilon, rms)
        assert total_rh is not None
        return total_rh, y_rh, mean_r, deviation_r

    def _forward(
        self,
        x_rh: Tensor,
        residual_rh: Tensor | None,
        weight_h: Tensor,
        bias_h: Tensor | None,
        epsilon: float,
        rms: bool,
    ) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor]:
        rows, hidden = x_rh.shape
        dtype = x_rh.dtype
        self._check(x_rh, residual_rh, weight_h, bias_h)
        y_rh = torch.empty_like(x_rh)
        total_rh = None if residual_rh is None else torch.empty_like(x_rh)
        deviation_r = torch.empty(rows, dtype=torch.float32, device=x_rh.device)
        mean_r = None if rms else torch.empty_like(deviation_r)
        if rows:
            form, blocks, threads = forward_geometry(rows, hidden)
            tensors = y_rh, total_rh, mean_r, deviation_r, x_rh, residual_rh, weight_h, bias_h
            arguments: tuple[Argument, ...] = (
                *map(address, tensors),
                *(c_float(epsilon), c_int64(rows), c_int32(hidden)),
                c_int32(_rows_fit(hidden, dtype) and is_aligned(y_rh, total_rh, x_rh, residual_rh)),
                c_int32(is_aligned(weight_h, bias_h)),
            )
            self._runner.launch(Launch(f"norm_{form}_{suffix(dtype)}", (blocks, 1, 1), (threads, 1, 1), 0, arguments))
        return total_rh, y_rh, mean_r, deviation_r

    def backward(
        self,
        gradient_rh: Tensor,
        x_rh: Tensor,
        weight_h: Tensor,
        mean_r: Tensor | None,
        deviation_r: Tensor,
        added_rh: Tensor | None,
        has_bias: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """As `NormKernels.backward`. Raises ValueError for what `refuses` names, and several dtypes.

        The order of the weights' sums follows from the shape, the dtype and the kind of the device.
        """
        rows, hidden = x_rh.shape
        self._check(x_rh, gradient_rh, weight_h, added_rh)
        of_x = torch.empty_like(x_rh)
        if not rows:
            return of_x, torch.zeros_like(weight_h), torch.zeros_like(weight_h) if has_bias else None
        of_weight = torch.empty_like(weight_h)
        of_bias = torch.empty_like(weight_h) if has_bias else None
        plan, ends = backward_geometry(rows, hidden, x_rh.dtype, has_bias, self._runner.facts), suffix(x_rh.dtype)
        partials = torch.empty(plan.blocks * plan.sums, dtype=torch.float32, device=x_rh.device)
        tensors = of_x, partials, gradient_rh, x_rh, weight_h, added_rh, mean_r, deviation_r
        arguments: tuple[Argument, ...] = (
            *map(address, tensors),
            *(c_int64(rows), c_int32(hidden), c_int32(has_bias)),
            c_int32(_rows_fit(hidden, x_rh.dtype) and is_aligned(of_x, gradient_rh, x_rh, added_rh)),
            *(c_int32(is_aligned(weight_h)), c_int32(plan.shared_bytes > 0)),
        )
        kernel = f"norm_backward_{plan.form}_{ends}"
        self._runner.launch(Launch(kernel, (plan.blocks, 1, 1), (plan.threads, 1, 1), plan.shared_bytes, arguments))
        arguments = (*map(address, (of_weight, of_bias, partials)), c_int32(plan.blocks), c_int32(hidden))
        grid, block = (-(-plan.sums // WARP_THREADS), 1, 1), (8 * WARP_THREADS, 1, 1)
        self._runner.launch(Launch(f"norm_weight_gradients_{ends}", grid, block, 0, arguments))
        return of_x, of_weight, of_bias

    def _check(self, x_rh: Tensor, *others: Tensor | None) -> None:
        why_not = self.refuses(x_rh.shape[-1])
        if why_not:
            raise ValueError(why_not)
        for other in others:
            if other is not None and other.dtype != x_rh.dtype:
                raise ValueError(f"{other.dtype} with rows of {x_rh.dtype}: the norm kernels take one dtype")


@dataclass(frozen=True)
class BackwardPlan:
    """The plan of the backward pass: the kernel's form and blocks, and the fp32 sums per block for the weights."""

    form: str
    blocks: int
    threads: int
    shared_bytes: int
    sums: int


def forward_geometry(rows: int, hidden: int) -> tuple[str, int, int]:
    """(form of the kernel, blocks, threads of a block): see the table at the head of the source."""
    if hidden <= WARP_THREADS * _VALUES_OF_THREAD:
        return "warp", -(-rows // (_WARP_FORM_THREADS // WARP_THREADS)), _WARP_FORM_THREADS
    if hidden <= _MOST_BLOCK_THREADS * _VALUES_OF_THREAD:
        return "block", rows, _threads(hidden, _VALUES_OF_THREAD)
    return "tiles", rows, _MOST_BLOCK_THREADS


def backward_geometry(rows: int, hidden: int, dtype: torch.dtype, has_bias: bool, facts: DeviceFacts) -> BackwardPlan:
    """As many blocks as a multiprocessor has registers and memory for, and needs for its memory to be busy."""
    width = VECTOR_BYTES // dtype.itemsize
    sums = -(-hidden // width) * width * (2 if has_bias else 1)
    rows_at_once = 1
    if hidden <= WARP_THREADS * _WARP_VECTORS * width:
        form, threads = "warp", _WARP_FORM_THREADS
        rows_at_once = threads // WARP_THREADS
    elif hidden <= _MOST_BLOCK_THREADS * _NARROW_VECTORS * width:
        form, threads = "narrow", _threads(hidden, _NARROW_VECTORS * width)
    elif hidden <= _MOST_BLOCK_THREADS * _BLOCK_VECTORS * width:
        form, threads = "block", _threads(hidden, _BLOCK_VECTORS * width)
    elif hidden <= _MOST_BLOCK_THREADS * _WIDE_VECTORS * width:
        form, threads = "wide", _threads(hidden, _WIDE_VECTORS * width)
    else:
        form, threads = "tiles", _MOST_BLOCK_THREADS
    # Of one row at once a block's sums are in registers; of several, and where those are too few, in shared memory.
    shared_bytes = 0 if form in ("narrow", "block") else rows_at_once * sums * 4
    if shared_bytes + _STATIC_SHARED_BYTES > facts.shared_bytes_per_block:
        shared_bytes = 0
    block_bytes = shared_bytes + 2 * _STATIC_SHARED_BYTES
    at_once = min(
        facts.registers_per_multiprocessor // (threads * _REGISTERS[form]),
        facts.shared_bytes_per_multiprocessor // block_bytes,
        -(-_BYTES_UNDER_WAY // (2 * rows_at_once * hidden * dtype.itemsize)),
    )
    blocks = min(facts.multiprocessors * max(1, at_once), -(-rows // rows_at_once))
    return BackwardPlan(form, blocks, threads, shared_bytes, sums)


def _threads(hidden: int, elements_of_thread: int) -> int:
    """Return a block's threads for a row, in whole warps."""
    return -(-hidden // (elements_of_thread * WARP_THREADS)) * WARP_THREADS


def _rows_fit(hidden: int, dtype: torch.dtype) -> bool:
    """Return whether every row is aligned for the widest vectors if the first one is."""
    return hidden * dtype.itemsize % VECTOR_BYTES == 0
