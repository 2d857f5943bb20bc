"""Norms in C++ against fp64 and torch's, and against themselves with other threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.native_libraries import built_library
from tests.unit.trainer.kernels.cpp.closeness import assert_as_close_as_torch, with_threads
from trainer.kernels.cpp import CppNorms
from trainer.kernels.normalization import NormKernels, added_and_normalized, normalized

#: rows, hidden: parts of vectors, parts of blocks of rows, and a row beyond the first-level cache.
SHAPES = [(1, 3), (3, 5), (64, 8), (65, 33), (1000, 20), (7, 256), (2, 20000)]


@pytest.fixture(scope="module")
def kernels() -> CppNorms:
    return CppNorms(built_library("operations"))


def drawn(rows: int, hidden: int, dtype: torch.dtype) -> list[Tensor]:
    """x, what is added to it, weight and bias, and gradients of the sum and of its norm."""
    generator = torch.Generator().manual_seed(rows + hidden)
    x, residual, of_total, of_normed = (torch.randn(rows, hidden, generator=generator) for _ in range(4))
    weight, bias = (torch.randn(hidden, generator=generator) for _ in range(2))
    return [one.to(dtype) for one in (3 * x + 5, residual, weight + 1, bias, of_total, of_normed)]


def results(numbers: list[Tensor], rms: bool, has_bias: bool, adds: bool, kernels: NormKernels | None) -> list[Tensor]:
    """Return the output, and the gradients of all inputs."""
    x, residual, weight, bias = (one.detach().clone().requires_grad_() for one in numbers[:4])
    own_bias, epsilon = bias if has_bias else None, 1e-5
    if adds:
        total, normed = added_and_normalized(x, residual, weight, own_bias, epsilon, rms, kernels)
        torch.autograd.backward((total, normed), (numbers[4], numbers[5]))
        given = [x, residual, weight, *([bias] if has_bias else [])]
        found = [total.detach(), normed.detach()]
    else:
        normed = normalized(x, weight, own_bias, epsilon, rms, kernels)
        normed.backward(numbers[5])
        given, found = [x, weight, *([bias] if has_bias else [])], [normed.detach()]
    return found + [one.grad for one in given if one.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("rms", "has_bias"), [(False, True), (False, False), (True, False)])
@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_its_results_and_gradients_are_as_close_to_the_exact_ones_as_torchs(
    kernels: CppNorms, rows: int, hidden: int, rms: bool, has_bias: bool, adds: bool, dtype: torch.dtype
) -> None:
    numbers = drawn(rows, hidden, dtype)
    exact = results([one.double() for one in numbers], rms, has_bias, adds, None)
    found, torchs = (results(numbers, rms, has_bias, adds, by) for by in (kernels, None))
    assert len(found) == len(exact)
    for own, other, wanted in zip(found, torchs, exact, strict=True):
        assert_as_close_as_torch(own, other, wanted)


@pytest.mark.parametrize(("rows", "hidden"), [(1000, 33), (65, 256)])
def test_it_gives_the_same_bits_with_any_number_of_threads(kernels: CppNorms, rows: int, hidden: int) -> None:
    numbers = drawn(rows, hidden, torch.float32)
    one, three = (with_threads(count, lambda: results(numbers, False, True, True, kernels)) for count in (1, 3))
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))


def test_a_row_that_lies_elsewhere_gives_the_same_bits(kernels: CppNorms) -> None:
    numbers = drawn(65, 33, torch.float32)
    spread = [one.repeat_interleave(2, dim=-1)[..., ::2] if one.dim() == 2 else one for one in numbers]
    plain, sliced = (results(some, False, True, True, kernels) for some in (numbers, spread))
    assert all(torch.equal(a, b) for a, b in zip(plain, sliced, strict=True))
