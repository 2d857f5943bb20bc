"""Activations in C++ against fp64 and torch's, and against themselves with other threads."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor

from tests.native_libraries import built_library
from tests.unit.trainer.kernels.cpp.closeness import assert_as_close_as_torch, with_threads
from trainer.kernels.activation import ActivationKernels, GateActivation, bias_gelu, gated
from trainer.kernels.cpp import CppActivations

SHAPES = [(1, 1), (3, 5), (65, 33), (1000, 20), (2, 20000)]


@pytest.fixture(scope="module")
def kernels() -> CppActivations:
    return CppActivations(built_library("operations"))


def drawn(rows: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """Two inputs, a bias, and a gradient: numbers up to 8 either way, where GeLU's two sides are long flat."""
    generator = torch.Generator().manual_seed(rows + width)
    first, second, gradient = (torch.randn(rows, width, generator=generator) for _ in range(3))
    return [one.to(dtype) for one in (2 * first, second, torch.randn(width, generator=generator), gradient)]


def of_gelu(numbers: list[Tensor], has_bias: bool, tanh: bool, kernels: ActivationKernels | None) -> list[Tensor]:
    """Return the output, and the gradients of the inputs."""
    x, bias = (numbers[place].detach().clone().requires_grad_() for place in (0, 2))
    out = bias_gelu(x, bias if has_bias else None, tanh, kernels)
    out.backward(numbers[3])
    return [out.detach(), *(one.grad for one in (x, bias) if one.grad is not None)]


def of_gate(numbers: list[Tensor], activation: GateActivation, kernels: ActivationKernels | None) -> list[Tensor]:
    """Return the output, and the gradients of the inputs."""
    gate, wide = (one.detach().clone().requires_grad_() for one in numbers[:2])
    out = gated(gate, wide, activation, kernels)
    out.backward(numbers[3])
    return [out.detach(), *(one.grad for one in (gate, wide) if one.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_gelu_and_its_gradients_are_as_close_to_the_exact_ones_as_torchs(
    kernels: CppActivations, rows: int, width: int, has_bias: bool, tanh: bool, dtype: torch.dtype
) -> None:
    numbers = drawn(rows, width, dtype)
    exact = of_gelu([one.double() for one in numbers], has_bias, tanh, None)
    found, torchs = (of_gelu(numbers, has_bias, tanh, by) for by in (kernels, None))
    assert len(found) == (3 if has_bias else 2)
    for own, other, wanted in zip(found, torchs, exact, strict=True):
        assert_as_close_as_torch(own, other, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", get_args(GateActivation))
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_gates_and_their_gradients_are_as_close_to_the_exact_ones_as_torchs(
    kernels: CppActivations, rows: int, width: int, activation: GateActivation, dtype: torch.dtype
) -> None:
    numbers = drawn(rows, width, dtype)
    exact = of_gate([one.double() for one in numbers], activation, None)
    found, torchs = (of_gate(numbers, activation, by) for by in (kernels, None))
    assert len(found) == 3
    for own, other, wanted in zip(found, torchs, exact, strict=True):
        assert_as_close_as_torch(own, other, wanted)


@pytest.mark.parametrize("tanh", [False, True])
def test_gelu_is_exact_over_all_its_range(kernels: CppActivations, tanh: bool) -> None:
    x = torch.linspace(-12, 12, 200_001).view(1, -1)
    exact = torch.nn.functional.gelu(x.double(), approximate="tanh" if tanh else "none")
    error = (kernels.bias_gelu(x, None, tanh).double() - exact).abs() / x.abs().clamp(min=1).double()
    assert float(error.max()) < 1.5e-7


@pytest.mark.parametrize("tanh", [False, True])
def test_far_out_gelu_is_a_line_on_one_side_and_nothing_on_the_other(kernels: CppActivations, tanh: bool) -> None:
    x = torch.tensor([[-1e38, -1e19, -1e4, -100.0, 100.0, 1e4, 1e19, 1e38]])
    slopes = kernels.bias_gelu_backward(torch.ones_like(x), x, None, tanh)[0]
    assert torch.equal(kernels.bias_gelu(x, None, tanh), x.clamp(min=0))
    assert torch.equal(slopes, (x > 0).float())


def test_no_number_stays_none(kernels: CppActivations) -> None:
    x = torch.full((2, 9), torch.nan)
    for tanh in (False, True):
        assert kernels.bias_gelu(x, None, tanh).isnan().all()
        assert kernels.bias_gelu_backward(torch.ones_like(x), x, None, tanh)[0].isnan().all()


def test_they_give_the_same_bits_with_any_number_of_threads(kernels: CppActivations) -> None:
    numbers = drawn(1000, 33, torch.float32)
    one, three = (with_threads(count, lambda: of_gelu(numbers, True, True, kernels)) for count in (1, 3))
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))


def test_inputs_that_lie_elsewhere_give_the_same_bits(kernels: CppActivations) -> None:
    numbers = drawn(65, 33, torch.float32)
    spread = [one.repeat_interleave(2, dim=-1)[..., ::2] if one.dim() == 2 else one for one in numbers]
    assert all(
        torch.equal(*two)
        for two in zip(of_gate(numbers, "silu", kernels), of_gate(spread, "silu", kernels), strict=True)
    )
