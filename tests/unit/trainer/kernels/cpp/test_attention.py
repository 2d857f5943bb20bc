"""Causal attention in C++ against fp64, torch's own, and itself with other threads and layouts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.native_libraries import built_library
from tests.unit.trainer.kernels.cpp.closeness import assert_as_close_as_torch, with_threads
from trainer.kernels.attention import attention, attention_of_product
from trainer.kernels.cpp import CppAttention
from trainer.model.attention import alibi_slopes

#: samples, length, groups, heads of a group, head size: below, at and beyond every block and vector.
SHAPES = [
    (1, 1, 1, 1, 1),
    (2, 1, 2, 1, 8),
    (1, 7, 3, 2, 20),
    (2, 65, 2, 1, 32),
    (1, 96, 1, 1, 16),
    (1, 97, 1, 5, 24),
    (1, 257, 2, 3, 64),
    (1, 288, 1, 1, 33),
    (1, 300, 2, 1, 80),
    (1, 600, 1, 2, 128),
]


@pytest.fixture(scope="module")
def kernels() -> CppAttention:
    return CppAttention(built_library("operations"))


def drawn(shape: tuple[int, int, int, int, int], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return a product qkv_bsgxd, and a gradient of the output."""
    b, s, g, m, d = shape
    generator = torch.Generator().manual_seed(s + d)
    qkv = torch.randn(b, s, g, m + 2, d, generator=generator)
    return qkv.to(dtype), torch.randn(b, s, g, m, d, generator=generator).to(dtype)


def slopes_of(shape: tuple[int, int, int, int, int]) -> Tensor:
    return torch.tensor(alibi_slopes(shape[2] * shape[3]))


def by_torch(qkv: Tensor, slopes: Tensor | None, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and product's gradient, by torch's plain operations in the product's dtype."""
    product = qkv.detach().clone().requires_grad_()
    b, s, g, x, d = product.shape
    heads = g * (x - 2)
    q = product[..., :-2, :].reshape(b, s, heads, d).transpose(1, 2)
    k, v = (product[..., part, :].repeat_interleave(x - 2, dim=2).transpose(1, 2) for part in (-2, -1))
    scores = q @ k.transpose(-1, -2) / math.sqrt(d)
    if slopes is not None:
        place = torch.arange(s)
        scores = scores + slopes.to(scores.dtype).view(-1, 1, 1) * (place - place[:, None])
    scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), -math.inf)
    out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, g, x - 2, d)
    out.backward(gradient)
    assert product.grad is not None
    return out.detach(), product.grad


def by_kernels(kernels: CppAttention, qkv: Tensor, slopes: Tensor | None, gradient: Tensor) -> tuple[Tensor, Tensor]:
    product = qkv.detach().requires_grad_()
    out = attention_of_product(product, slopes, 1 / math.sqrt(qkv.shape[-1]), kernels)
    out.backward(gradient)
    assert product.grad is not None
    return out.detach(), product.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_slopes", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_its_results_and_gradients_are_as_close_to_the_exact_ones_as_torchs(
    kernels: CppAttention, shape: tuple[int, int, int, int, int], has_slopes: bool, dtype: torch.dtype
) -> None:
    (qkv, gradient), slopes = drawn(shape, dtype), slopes_of(shape) if has_slopes else None
    exact = by_torch(qkv.double(), slopes, gradient.double())
    for found, torchs, wanted in zip(
        by_kernels(kernels, qkv, slopes, gradient), by_torch(qkv, slopes, gradient), exact, strict=True
    ):
        assert_as_close_as_torch(found, torchs, wanted)


@pytest.mark.parametrize("shape", [(2, 97, 3, 2, 20), (1, 300, 2, 1, 64)])
def test_it_gives_the_same_bits_with_any_number_of_threads(
    kernels: CppAttention, shape: tuple[int, int, int, int, int]
) -> None:
    (qkv, gradient), slopes = drawn(shape), slopes_of(shape)
    one, three = (with_threads(count, lambda: by_kernels(kernels, qkv, slopes, gradient)) for count in (1, 3))
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))


def test_a_product_that_is_a_slice_of_something_gives_the_same_bits(kernels: CppAttention) -> None:
    qkv, gradient = drawn((2, 65, 2, 2, 20))
    within = torch.full((2, 130, 2, 4, 23), math.nan)[:, ::2, :, :, 2:22]
    within.copy_(qkv)
    spread = torch.full((2, 65, 2, 2, 40), math.nan)[..., ::2]
    spread.copy_(gradient)
    plain, sliced = by_kernels(kernels, qkv, None, gradient), by_kernels(kernels, within, None, spread)
    assert all(torch.equal(a, b) for a, b in zip(plain, sliced, strict=True))


def test_queries_keys_and_values_that_lie_apart_give_the_same_bits(kernels: CppAttention) -> None:
    qkv, gradient = drawn((2, 65, 2, 3, 32))
    out, of_qkv = by_kernels(kernels, qkv, None, gradient)
    q, k, v = (one.clone().requires_grad_() for one in (qkv[..., :-2, :], qkv[..., -2, :], qkv[..., -1, :]))
    heads_first = q.transpose(1, 3).contiguous().transpose(1, 3)
    apart = attention(heads_first, k, v, None, 1 / math.sqrt(32), kernels)
    apart.backward(gradient)
    assert torch.equal(apart, out)
    assert q.grad is not None
    assert k.grad is not None
    assert v.grad is not None
    assert torch.equal(torch.cat((q.grad, k.grad[:, :, :, None], v.grad[:, :, :, None]), dim=3), of_qkv)


def test_later_tokens_change_nothing_before_them(kernels: CppAttention) -> None:
    qkv, gradient = drawn((1, 300, 1, 1, 32))
    changed = qkv.clone()
    changed[:, 150:] = 1e30
    before, after = (by_kernels(kernels, one, None, gradient)[0][:, :150] for one in (qkv, changed))
    assert torch.equal(before, after)


def test_scores_far_apart_lose_no_more_than_in_torchs_kernel(kernels: CppAttention) -> None:
    """Which keeps the logs of the sums alone as well; what keeps the weights themselves loses less here."""
    qkv, gradient = drawn((1, 300, 1, 1, 8))
    qkv[..., :2, :] *= 30  # exponents of thousands below the greatest, in every block of keys
    product = qkv.clone().requires_grad_()
    q, k, v = (product[:, :, :, part].transpose(1, 2) for part in range(3))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    out.backward(gradient[:, :, :, 0])
    assert product.grad is not None
    exact = by_torch(qkv.double(), None, gradient.double())
    found, torchs = by_kernels(kernels, qkv, None, gradient), (out.detach()[:, :, :, None], product.grad)
    for own, other, wanted in zip(found, torchs, exact, strict=True):
        assert_as_close_as_torch(own, other, wanted)


def test_no_number_stays_none(kernels: CppAttention) -> None:
    qkv, gradient = drawn((1, 65, 1, 1, 16))
    qkv[0, 10, 0, 1, 3] = math.nan
    out, of_qkv = by_kernels(kernels, qkv, None, gradient)
    assert out[:, :10].isfinite().all()
    assert out[:, 10:].isnan().all()
    assert of_qkv[:, 10:].isnan().any()
