"""residual + dropout(x + bias) in C++, beside torch and fp64."""

from __future__ import annotations

import pytest
import torch

from tests.native_libraries import built_library
from tests.unit.trainer.kernels.rounding import assert_no_worse, misaligned
from trainer.kernels.cpp import CppResiduals
from trainer.kernels.residual import Dropped, added

SEEDS = [5, (1 << 63) - 1]


@pytest.fixture(scope="module")
def kernels() -> CppResiduals:
    return CppResiduals(built_library("operations"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize(
    ("positions", "hidden", "part"), [(1, 1, (0, 1)), (40, 31, (2, 3)), (67, 300, (1, 2)), (3, 1024, (0, 1))]
)
def test_sums_and_gradients_are_as_near_to_fp64_as_torchs_and_drop_the_same(
    kernels: CppResiduals, positions: int, hidden: int, part: tuple[int, int], probability: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    dropped = Dropped(SEEDS, probability, part) if probability else None
    x, residual, gradient = (misaligned(torch.randn(2, positions, hidden).to(dtype), 1) for _ in range(3))
    bias = torch.randn(hidden).to(dtype)
    results = []
    for kind, chosen in ((dtype, kernels), (dtype, None), (torch.float64, None)):
        leaves = [one.to(kind).detach().requires_grad_() for one in (x, bias, residual)]
        total = added(leaves[0], leaves[1], leaves[2], dropped, chosen)
        results.append([total.detach(), *torch.autograd.grad(total, leaves, gradient.to(kind))])
    # Of the four only the bias's gradient is a sum: over all positions.
    for ours, by_torch, exact, terms in zip(*results, (1, 1, 2 * positions, 1), strict=True):
        assert_no_worse(ours, by_torch, exact, terms)
    if dropped:
        assert torch.equal(results[0][1] == 0, results[2][1] == 0)


def test_no_bit_depends_on_the_number_of_threads(kernels: CppResiduals) -> None:
    x, seeds = torch.randn(2, 300, 65), torch.tensor(SEEDS)
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append(
                [kernels.forward(x, x[0, 0], x, seeds, 0.3, (0, 1)), *kernels.backward(x, seeds, 0.3, (0, 1), True)]
            )
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        for one, first in zip(other, results[0], strict=True):
            assert one is not None and first is not None and torch.equal(one, first)


def test_without_a_residual_or_bias_the_rest_is_done(kernels: CppResiduals) -> None:
    x = torch.randn(2, 4, 24)
    alone = kernels.forward(x, None, None, torch.tensor(SEEDS), 0.5, (0, 1))
    assert torch.equal(alone, added(x, None, None, Dropped(SEEDS, 0.5), None))
    of_x, of_bias = kernels.backward(x, None, 0.0, (0, 1), has_bias=False)
    assert of_x is x and of_bias is None
