"""Causal self-attention by kernels that read queries, keys and values where a product with weights has put them.

What autograd keeps is what went in, what came out, and the log of each softmax's sum. ALiBi is a slope per head.
Sources: Dao et al., arXiv 2205.14135; Press et al., arXiv 2108.12409.

Shapes: b batch, s sequence, g groups of heads that share keys and values, m heads of a group, d head size.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class AttentionKernels(Protocol):
    """What computes it. Tensors may have any strides, as long as a head's numbers lie side by side."""

    def forward(
        self, q_bsgmd: Tensor, k_bsgd: Tensor, v_bsgd: Tensor, slopes_n: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        """(out_bsgmd, contiguous, and the logs of the softmax's sums, fp32 [b, g * m, s]).

        Scores are scale * q @ k + slope * (key - query) for keys up to the query; slopes: fp32, of the heads in order.
        """

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
        """Writes the gradients of q, k and v, whose shapes are those of `inputs`, every element of them."""


def attention_of_product(qkv_bsgxd: Tensor, slopes_n: Tensor | None, scale: float, kernels: AttentionKernels) -> Tensor:
    """out_bsgmd of a product in which each group has its m queries, then its key and its value: x is m + 2."""
    out: Tensor = _OfProduct.apply(_with_rows(qkv_bsgxd), slopes_n, scale, kernels)
    return out


def attention(
    q_bsgmd: Tensor, k_bsgd: Tensor, v_bsgd: Tensor, slopes_n: Tensor | None, scale: float, kernels: AttentionKernels
) -> Tensor:
    """out_bsgmd of queries, keys and values that lie apart."""
    inputs = (_with_rows(one) for one in (q_bsgmd, k_bsgd, v_bsgd))
    out: Tensor = _Apart.apply(*inputs, slopes_n, scale, kernels)
    return out


def _with_rows(tensor: Tensor) -> Tensor:
    """The same with a head's numbers side by side."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _parts(qkv_bsgxd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return qkv_bsgxd[..., :-2, :], qkv_bsgxd[..., -2, :], qkv_bsgxd[..., -1, :]


class _OfProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, slopes: Tensor | None, scale: float, kernels: AttentionKernels) -> Tensor:
        out, log_sums = kernels.forward(*_parts(qkv), slopes, scale)
        ctx.save_for_backward(qkv, out, log_sums, slopes)
        ctx.scale, ctx.kernels = scale, kernels
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        qkv, out, log_sums, slopes = ctx.saved_tensors
        of_qkv = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
        gradient = _with_rows(gradients[0])
        ctx.kernels.backward(gradient, _parts(qkv), out, log_sums, slopes, ctx.scale, _parts(of_qkv))
        return of_qkv, None, None, None


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, scale: float, kernels: AttentionKernels
    ) -> Tensor:
        out, log_sums = kernels.forward(q, k, v, slopes, scale)
        ctx.save_for_backward(q, k, v, out, log_sums, slopes)
        ctx.scale, ctx.kernels = scale, kernels
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, k, v, out, log_sums, slopes = ctx.saved_tensors
        of_inputs = tuple(torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in (q, k, v))
        ctx.kernels.backward(_with_rows(gradients[0]), (q, k, v), out, log_sums, slopes, ctx.scale, of_inputs)
        return *of_inputs, None, None, None
