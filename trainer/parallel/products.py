"""Matrix products in the dtype the processor is fast in.

A CPU without bfloat16 instructions computes bf16 products some thirty times slower than fp32 ones; there both operands
are cast to fp32 for the product and the result back.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor


@functools.cache
def cpu_multiplies_bf16() -> bool:
    """Whether this CPU has bfloat16 instructions."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16"))


def is_slow_half(tensor: Tensor) -> bool:
    """Whether products of this tensor are better done in fp32: 16-bit types on a CPU that cannot multiply them."""
    if tensor.device.type != "cpu":
        return False
    return tensor.dtype == torch.float16 or (tensor.dtype == torch.bfloat16 and not cpu_multiplies_bf16())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias in x's dtype. x: [..., in], weight: [out, in], bias: [out]."""
    if is_slow_half(x):
        wide_bias = None if bias is None else bias.float()
        return torch.nn.functional.linear(x.float(), weight.float(), wide_bias).to(x.dtype)
    return torch.nn.functional.linear(x, weight, bias)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in left's dtype."""
    if is_slow_half(left):
        return (left.float() @ right.float()).to(left.dtype)
    return left @ right
