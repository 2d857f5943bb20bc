"""Attention by `csrc/cpu/attention.cpp`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from trainer.kernels.cpp.calls import NUMBER, SIZE, SIZES, TENSOR, Calls


class CppAttention:
    """`AttentionKernels` of a CPU, fp32 and bf16, which it computes in fp32.

    Results do not depend on the number of threads; a group of heads of one sample is what a thread takes.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        sizes = [SIZES, *[SIZE] * 5, NUMBER]
        self._forward = Calls(library, "attention_forward", [*[TENSOR] * 6, *sizes], can_fail=True)
        self._backward = Calls(library, "attention_backward", [*[TENSOR] * 10, *sizes], can_fail=True)

    def forward(
        self, q_bsgmd: Tensor, k_bsgd: Tensor, v_bsgd: Tensor, slopes_n: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        """As `AttentionKernels` has it."""
        b, s, g, m, d = q_bsgmd.shape
        out = torch.empty(b, s, g, m, d, dtype=q_bsgmd.dtype)
        log_sums = torch.empty(b, g * m, s)
        strides = _strides(q_bsgmd, k_bsgd, v_bsgd, out)
        self._forward(q_bsgmd, k_bsgd, v_bsgd, slopes_n, out, log_sums, strides, b, g, m, s, d, scale)
        return out, log_sums

    def backward(
        self,
        gradient_bsgmd: Tensor,
        inputs: tuple[Tensor, Tensor, Tensor],
        out_bsgmd: Tensor,
        log_sums_bns: Tensor,
        slopes_n: Tensor | None,
        scale: float,
        gradients: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """As `AttentionKernels` has it."""
        b, s, g, m, d = out_bsgmd.shape
        strides = _strides(gradient_bsgmd, *inputs, out_bsgmd, *gradients)
        self._backward(
            gradient_bsgmd, *inputs, out_bsgmd, slopes_n, log_sums_bns, *gradients, strides, b, g, m, s, d, scale
        )


def _strides(*tensors: Tensor) -> ctypes.Array[ctypes.c_int64]:
    """Of each: sample, group, member of the group (none where it is shared), position."""
    found: list[int] = []
    for one in tensors:
        sample, position, group, *member = one.stride()[:-1]
        found += [sample, group, *(member or [0]), position]
    return (ctypes.c_int64 * len(found))(*found)
