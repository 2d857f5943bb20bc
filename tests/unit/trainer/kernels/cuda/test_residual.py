"""residual + dropout(x + bias) by CUDA kernels, beside torch and fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.unit.trainer.kernels.conftest import Machine
from tests.unit.trainer.kernels.rounding import assert_no_worse, misaligned
from trainer.kernels.cuda.residual import CudaResiduals
from trainer.kernels.residual import Dropped, added

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SEEDS = [5, (1 << 63) - 1]
#: positions, hidden and by how many elements the tensors are misaligned, which slice they are of how many.
SHAPES = [(1, 1, 0, (0, 1)), (37, 264, 0, (0, 1)), (6, 264, 1, (1, 2)), (40, 31, 0, (2, 3)), (5, 264, 0, (3, 4))]


def numbers(shape: tuple[int, ...], dtype: torch.dtype, machine: Machine, off: int, seed: int) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return misaligned(drawn.to(machine.device, dtype), off)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_and_gradients_are_as_near_to_fp64_as_torchs_and_drop_the_same(
    machine: Machine, shape: tuple[int, int, int, tuple[int, int]], probability: float, dtype: torch.dtype
) -> None:
    positions, hidden, off, part = shape
    kernels = CudaResiduals(machine.runner)
    dropped = Dropped(SEEDS, probability, part) if probability else None
    x, residual, gradient = (numbers((2, positions, hidden), dtype, machine, off, seed) for seed in range(3))
    bias = numbers((hidden,), dtype, machine, 0, 3)
    results = []
    for kind, chosen in ((dtype, kernels), (dtype, None), (torch.float64, None)):
        leaves = [one.to(kind).detach().requires_grad_() for one in (x, bias, residual)]
        total = added(leaves[0], leaves[1], leaves[2], dropped, chosen)
        results.append([total.detach(), *torch.autograd.grad(total, leaves, gradient.to(kind))])
    for ours, by_torch, exact in zip(*results, strict=True):
        assert_no_worse(ours, by_torch, exact)
    if dropped:
        assert torch.equal(results[0][1] == 0, results[2][1] == 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_a_residual_or_bias_the_rest_is_done(machine: Machine, dtype: torch.dtype) -> None:
    kernels = CudaResiduals(machine.runner)
    x, residual = (numbers((2, 4, 24), dtype, machine, 0, seed) for seed in (1, 2))
    seeds = torch.tensor(SEEDS, device=machine.device)
    alone = kernels.forward(x, None, None, seeds, 0.5, (0, 1))
    assert torch.equal(alone, added(x, None, None, Dropped(SEEDS, 0.5), None))
    assert torch.equal(kernels.forward(x, None, residual, None, 0.0, (0, 1)), x + residual)
    of_x, of_bias = kernels.backward(x, seeds, 0.5, (0, 1), has_bias=False)
    assert torch.equal(of_x, alone) and of_bias is None
    of_x, of_bias = kernels.backward(x, None, 0.0, (0, 1), has_bias=False)
    assert of_x is x and of_bias is None


def test_a_bias_gradient_is_the_same_in_every_order_of_threads(machine: Machine) -> None:
    gradient = numbers((2, 150, 40), torch.float32, machine, 0, 1)
    seeds = torch.tensor(SEEDS, device=machine.device)
    results = [CudaResiduals(runner).backward(gradient, seeds, 0.3, (0, 1), True) for runner in machine.runners]
    for of_x, of_bias in results:
        assert of_bias is not None and results[0][1] is not None
        assert torch.equal(of_x, results[0][0]) and torch.equal(of_bias, results[0][1])


def test_what_is_no_number_stays_none_where_it_is_dropped(machine: Machine) -> None:
    x = torch.full((1, 3, 8), torch.nan, device=machine.device)
    assert CudaResiduals(machine.runner).forward(x, None, x, torch.tensor([3]).to(x.device), 0.5, (0, 1)).isnan().all()


def test_a_residual_in_another_dtype_is_added_by_torch(machine: Machine) -> None:
    x, residual = torch.randn(1, 2, 4).bfloat16().to(machine.device), torch.randn(1, 2, 4, device=machine.device)
    total = added(x, None, residual, None, CudaResiduals(machine.runner))
    assert total.dtype == torch.float32 and torch.equal(total, residual + x)


def test_nothing_gives_nothing(machine: Machine) -> None:
    kernels, empty = CudaResiduals(machine.runner), torch.empty(2, 0, 8, device=machine.device)
    seeds = torch.tensor(SEEDS, device=machine.device)
    assert kernels.forward(empty, None, None, seeds, 0.5, (0, 1)).shape == (2, 0, 8)
    of_x, of_bias = kernels.backward(empty, seeds, 0.5, (0, 1), has_bias=True)
    assert of_x.shape == (2, 0, 8) and of_bias is not None and of_bias.tolist() == [0] * 8
