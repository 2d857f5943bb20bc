"""Products of matrices that tensor-parallel ranks share, some with their collective overlapped."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.parallel.process_groups import Parallel

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
    """Return whether products of this tensor are faster in fp32: 16-bit types on a CPU that cannot multiply them."""
    if tensor.device.type != "cpu":
        return False
    return tensor.dtype == torch.float16 or (tensor.dtype == torch.bfloat16 and not cpu_multiplies_bf16())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias in x's dtype. x: [..., in], weight: [out, in], bias: [out]."""
    if is_slow_half(x):
        product: Tensor = _WideLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return product
    return torch.nn.functional.linear(x, weight, bias)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right in left's dtype. left: [..., k], right: [k, n]."""
    if is_slow_half(left):
        return _wide_product(left.reshape(-1, left.shape[-1]), right).view(*left.shape[:-1], right.shape[-1])
    return left @ right


def _wide_product(left_mk: Tensor, right_kn: Tensor, bias_n: Tensor | None = None) -> Tensor:
    """Return left @ right + bias, summed in fp32 and rounded once to left's dtype."""
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


def products_of_copy(x: Tensor, layers: list[tuple[Tensor, Tensor | None]], parallel: Parallel) -> list[Tensor]:
    """Return x @ weight.T + bias for each (weight, bias), this rank's rows; x: [..., in], the same on every rank.

    Backward is collective: one all-reduce, for any number of layers.
    """
    if parallel.tensor_size == 1:
        return [linear(x, weight, bias) for weight, bias in layers]
    flat = [one for layer in layers for one in layer]
    of_layers: tuple[Tensor, ...] = _ProductsOfCopy.apply(x, parallel.tensor_group, *flat)  # type: ignore[no-untyped-call]
    return list(of_layers)


class _ProductsOfCopy(torch.autograd.Function):
    """weights_and_biases: weight, bias or None, weight, ...; an output for each weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, *weights_and_biases: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = weights_and_biases[::2], weights_and_biases[1::2]
        ctx.group = group
        ctx.save_for_backward(x, *weights)
        return tuple(linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, *weights = ctx.saved_tensors
        # Flat, as the products of weights' gradients want them.
        flat = [gradient.reshape(-1, gradient.shape[-1]) for gradient in gradients]
        of_x: Any = None
        for gradient, weight in zip(flat, weights, strict=True):
            part = matmul(gradient, weight)
            of_x = part if of_x is None else of_x.add_(part)
        summing = dist.all_reduce(of_x, group=ctx.group, async_op=True)
        x_flat = x.reshape(-1, x.shape[-1])
        of_layers: list[Tensor | None] = []
        for number, gradient in enumerate(flat):
            of_layers.append(matmul(gradient.t(), x_flat))
            has_bias = ctx.needs_input_grad[2 + 2 * number + 1]
            of_layers.append(gradient.sum(dim=0) if has_bias else None)
        summing.wait()
        return of_x.view_as(x), None, *of_layers


#: Numbers of the weight that are cast to fp32, or whose gradient is made, at a time.
_BLOCK_NUMBERS = 1 << 20


def logits_into(logits_tv: Tensor, x_th: Tensor, weight_vh: Tensor) -> None:
    """Write x @ weight.T to the logits, which may be of a wider dtype."""
    if is_slow_half(x_th):
        wide_th = x_th.float()
        for rows in _output_blocks(weight_vh):
            torch.mm(wide_th, weight_vh[rows].float().t(), out=logits_tv[:, rows])
    elif logits_tv.dtype == x_th.dtype:
        torch.mm(x_th, weight_vh.t(), out=logits_tv)
    else:
        logits_tv.copy_(x_th @ weight_vh.t())


def gradient_of_x(gradient_tv: Tensor, weight_vh: Tensor) -> Tensor:
    """Return gradient @ weight, [t, h] in the gradient's dtype."""
    if gradient_tv.dtype == weight_vh.dtype:
        return gradient_tv @ weight_vh
    total_th = gradient_tv.new_zeros(gradient_tv.shape[0], weight_vh.shape[1])
    for rows in _output_blocks(weight_vh):
        total_th.addmm_(gradient_tv[:, rows], weight_vh[rows].float())
    return total_th


def add_gradient_of_weight(
    total_vh: Tensor, gradient_tv: Tensor, x_th: Tensor, multiplier: float, is_first: bool
) -> None:
    """Add multiplier * gradient.T @ x to the total, in fp32; overwrite it with the first product of its sum."""
    beta = 0 if is_first else 1
    if gradient_tv.dtype == torch.float32:
        total_vh.addmm_(gradient_tv.t(), x_th.float(), beta=beta, alpha=multiplier)
        return
    if x_th.is_cuda and hasattr(torch.ops.aten.addmm, "dtype_out"):  # since torch 2.8
        torch.ops.aten.addmm.dtype_out(
            total_vh, gradient_tv.t(), x_th, torch.float32, beta=beta, alpha=multiplier, out=total_vh
        )
        return
    for rows in _output_blocks(total_vh):  # a product rounded to 16 bits: never one of the whole weight
        block = total_vh[rows].zero_() if is_first else total_vh[rows]
        block.add_(gradient_tv[:, rows].t() @ x_th, alpha=multiplier)


def _output_blocks(weight_vh: Tensor) -> Iterator[slice]:
    """Rows of at most so many numbers together."""
    rows, hidden = weight_vh.shape
    many = max(1, _BLOCK_NUMBERS // hidden)
    return (slice(first, first + many) for first in range(0, rows, many))
