"""Adam and sums of squares in C++ against torch.optim.AdamW in fp64."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.native_libraries import built_library
from trainer.kernels.adam import AdamBuffers, AdamSettings
from trainer.kernels.cpp import CppAdam

LEARNING_RATE, BETAS, EPSILON, DECAY, SCALE = 3e-2, (0.9, 0.95), 1e-2, 0.1, 0.37
BLOCK = 16384  # of `csrc/cpu/adam.cpp`


@pytest.fixture
def kernels() -> CppAdam:
    return CppAdam(built_library("operations"))


def gradients_of(size: int, steps: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    return [torch.randn(size, generator=generator).to(dtype) for _ in range(steps)]


def initial_weight(size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1 + size))


def by_torch(weight: Tensor, gradients: list[Tensor]) -> Tensor:
    """Return the weight after a step on each of the scaled gradients, in the weight's dtype."""
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW(
        [parameter], lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY, fused=True
    )
    for gradient in gradients:
        parameter.grad = gradient.to(weight.dtype) * SCALE
        optimizer.step()
    return parameter.detach()


def buffers_of(size: int, half: bool = False) -> AdamBuffers:
    weight = initial_weight(size)
    of_half = torch.full((size,), math.nan, dtype=torch.bfloat16) if half else None
    return AdamBuffers(weight, torch.empty(0), torch.zeros(size), torch.zeros(size), of_half)


def updated(kernels: CppAdam, buffers: AdamBuffers, gradients: list[Tensor], cut_at: tuple[int, ...] = ()) -> Tensor:
    """Return the weight after a step on each of the gradients, each in pieces cut at these places."""
    cuts = [0, *cut_at, buffers.weight.numel()]
    for step, gradient in enumerate(gradients, start=1):
        pieces = [
            AdamBuffers(
                buffers.weight[start:end],
                gradient[start:end],
                buffers.first[start:end],
                buffers.second[start:end],
                None if buffers.half is None else buffers.half[start:end],
            )
            for start, end in pairwise(cuts)
        ]
        kernels.step(pieces, AdamSettings(LEARNING_RATE, *BETAS, EPSILON, DECAY, step), SCALE)
    return buffers.weight


@pytest.mark.parametrize("size", [1, 63, 64, 1000, 2 * BLOCK + 65])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_twenty_steps_are_as_near_to_fp64_as_those_of_torch(kernels: CppAdam, size: int, dtype: torch.dtype) -> None:
    gradients = gradients_of(size, 20, dtype)
    truth = by_torch(initial_weight(size).double(), gradients)
    error_of_torch = (by_torch(initial_weight(size), [one.float() for one in gradients]) - truth).abs().max()
    error = (updated(kernels, buffers_of(size), gradients) - truth).abs().max()
    assert error <= 2 * error_of_torch + 2**-23


def test_the_half_is_the_weight_rounded(kernels: CppAdam) -> None:
    buffers = buffers_of(1000, half=True)
    weight = updated(kernels, buffers, gradients_of(1000, 3))
    assert buffers.half is not None
    assert torch.equal(buffers.half, weight.bfloat16())


def test_a_half_of_what_is_no_number_is_none_and_the_greatest_rounds_to_infinity(kernels: CppAdam) -> None:
    weight = torch.tensor([math.nan, math.inf, 3.4e38, 1.0])
    half = torch.zeros(4, dtype=torch.bfloat16)
    buffers = AdamBuffers(weight, torch.zeros(4), torch.zeros(4), torch.zeros(4), half)
    kernels.step([buffers], AdamSettings(0.0, *BETAS, EPSILON, 0.0, 1))
    assert torch.equal(half.nan_to_num(nan=7.0), weight.bfloat16().nan_to_num(nan=7.0))


def test_neither_cuts_nor_threads_nor_alignment_change_a_bit(kernels: CppAdam) -> None:
    size = 3 * BLOCK + 77
    gradients = gradients_of(size, 3)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        whole = updated(kernels, buffers_of(size), gradients)
        sums = kernels.squares([gradients[0], gradients[1].bfloat16()])
        torch.set_num_threads(3)
        cut = updated(kernels, buffers_of(size), gradients, cut_at=(1, 64, BLOCK + 3))
        assert torch.equal(cut, whole)
        assert torch.equal(kernels.squares([gradients[0], gradients[1].bfloat16()]), sums)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("sizes", [(1,), (15, 17, 16384), (40_000, 0, 3)], ids=str)
def test_squares_are_summed_in_fp64(kernels: CppAdam, sizes: tuple[int, ...]) -> None:
    gradients = [one for size in sizes for one in gradients_of(size, 1)]
    gradients.append(torch.full((3,), 1e30))  # whose squares no fp32 holds
    gradients.append(gradients_of(100, 1, torch.bfloat16)[0])
    truth = math.fsum(math.fsum((one.double() ** 2).tolist()) for one in gradients)
    assert kernels.squares(gradients).item() == pytest.approx(truth, rel=1e-14)
    assert kernels.squares([]).tolist() == [0.0]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("at", [0, 20_000, 20_004])
def test_squares_are_no_finite_number_where_one_gradient_is_none(
    kernels: CppAdam, bad: float, dtype: torch.dtype, at: int
) -> None:
    gradient = torch.zeros(20_005, dtype=dtype)
    gradient[at] = bad
    assert not math.isfinite(kernels.squares([torch.ones(3), gradient]).item())
