"""Matrix products in the dtype the processor is fast in.

A CPU without bfloat16 instructions computes bf16 products some thirty times slower than fp32 ones; there both operands
are cast to fp32 for the product, block by block, and the result back. No wide copy outlives its product.

Shapes: t tokens, i input, o output; m, k, n of any product.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: Rows cast at once: enough for a product to be as fast as a whole one, few enough to be found in a cache again.
_BLOCK = 512


#: What /proc/cpuinfo calls bfloat16 instructions: of x86-64 the first two, of ARM the last.
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


@functools.cache
def cpu_multiplies_bf16() -> bool:
    """Return True if this CPU has bfloat16 instructions. Asks the kernel: older releases of torch cannot."""
    try:
        return has_bf16_flag(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return False


def has_bf16_flag(cpuinfo: str) -> bool:
    """Return True if the text of /proc/cpuinfo names bfloat16 instructions."""
    return not _BF16_FLAGS.isdisjoint(cpuinfo.split())


def is_slow_half(tensor: Tensor) -> bool:
    """Whether products of this tensor are better done in fp32: 16-bit types on a CPU that cannot multiply them."""
    if tensor.device.type != "cpu":
        return False
    return tensor.dtype == torch.float16 or (tensor.dtype == torch.bfloat16 and not cpu_multiplies_bf16())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias in x's dtype. x: [..., in], weight: [out, in], bias: [out]."""
    if is_slow_half(x):
        product: Tensor = _WideLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return product
    return torch.nn.functional.linear(x, weight, bias)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in left's dtype. left: [..., k], right: [k, n]."""
    if is_slow_half(left):
        return _wide_product(left.reshape(-1, left.shape[-1]), right).view(*left.shape[:-1], right.shape[-1])
    return left @ right


def _wide_product(left_mk: Tensor, right_kn: Tensor, bias_n: Tensor | None = None) -> Tensor:
    """left @ right + bias, summed in fp32 and rounded once to left's dtype."""
    (m, k), n = left_mk.shape, right_kn.shape[1]
    if k > max(m, n):  # a weight's gradient, which sums over tokens
        total_mn = left_mk.new_zeros(m, n, dtype=torch.float32) if bias_n is None else bias_n.float().repeat(m, 1)
        for part in _blocks(k):
            total_mn.addmm_(left_mk[:, part].float(), right_kn[part].float())
        return total_mn.to(left_mk.dtype)
    wide_kn, out_mn = right_kn.float(), left_mk.new_empty(m, n)
    wide_bias_n = None if bias_n is None else bias_n.float()
    for part in _blocks(m):
        wide_mk = left_mk[part].float()
        out_mn[part] = wide_mk @ wide_kn if wide_bias_n is None else torch.addmm(wide_bias_n, wide_mk, wide_kn)
    return out_mn


def _blocks(length: int) -> list[slice]:
    return [slice(start, start + _BLOCK) for start in range(0, length, _BLOCK)]


class _WideLinear(torch.autograd.Function):
    """x and weight are kept as they are, and cast once more for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x_ti = x.reshape(-1, x.shape[-1])
        ctx.save_for_backward(x_ti, weight)
        return _wide_product(x_ti, weight.t(), bias).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x_ti, weight = ctx.saved_tensors
        shape, gradient_to = gradients[0].shape, gradients[0].reshape(-1, gradients[0].shape[-1])
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            _wide_product(gradient_to, weight).view(*shape[:-1], weight.shape[1]) if of_x else None,
            _wide_product(gradient_to.t(), x_ti) if of_weight else None,
            gradient_to.sum(dim=0) if of_bias else None,
        )
