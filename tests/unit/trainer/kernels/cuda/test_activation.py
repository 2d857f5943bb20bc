"""Activations by CUDA kernels, beside torch's and fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.unit.trainer.kernels.conftest import Machine
from tests.unit.trainer.kernels.rounding import assert_no_worse, misaligned
from trainer.kernels.activation import GateActivation, bias_gelu, gated
from trainer.kernels.cuda.activation import CudaActivations

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
GATES: list[GateActivation] = ["silu", "gelu_tanh", "gelu_erf", "relu", "none"]
#: rows, width and by how many elements the tensors are misaligned: vectors, single elements, more blocks than one.
SHAPES = [(1, 1, 0), (37, 264, 0), (3, 264, 1), (70, 31, 0), (9, 130, 3)]


def numbers(shape: tuple[int, ...], dtype: torch.dtype, machine: Machine, off: int, seed: int) -> Tensor:
    """Of every size that activations are bent at, and some far from there."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator) * 3
    flat = drawn.view(-1)
    flat[::17] = 0
    flat[5::29] = 40
    flat[7::31] = -40
    return misaligned(drawn.to(machine.device, dtype), off)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tanh", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gelu_with_its_bias_and_its_gradients_are_as_near_to_fp64_as_torchs(
    machine: Machine, shape: tuple[int, int, int], tanh: bool, dtype: torch.dtype
) -> None:
    rows, width, off = shape
    kernels = CudaActivations(machine.runner)
    x, bias = numbers((rows, width), dtype, machine, off, 1), numbers((width,), dtype, machine, 0, 2)
    gradient = numbers((rows, width), dtype, machine, off, 3)
    results = []
    for kind in (dtype, torch.float64):
        x_of, bias_of = (one.to(kind).detach().requires_grad_() for one in (x, bias))
        value = bias_gelu(x_of, bias_of, tanh, None)
        results.append([value.detach(), *torch.autograd.grad(value, (x_of, bias_of), gradient.to(kind))])
    ours = [kernels.bias_gelu(x, bias, tanh), *kernels.bias_gelu_backward(gradient, x, bias, tanh)]
    for one, by_torch, exact in zip(ours, *results, strict=True):
        assert one is not None
        assert_no_worse(one, by_torch, exact)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", GATES)
@pytest.mark.parametrize("shape", SHAPES[1:3], ids=str)
def test_gates_and_their_gradients_are_as_near_to_fp64_as_torchs(
    machine: Machine, shape: tuple[int, int, int], activation: GateActivation, dtype: torch.dtype
) -> None:
    rows, width, off = shape
    kernels = CudaActivations(machine.runner)
    gate, wide, gradient = (numbers((rows, width), dtype, machine, off, seed) for seed in range(3))
    results = []
    for kind in (dtype, torch.float64):
        gate_of, wide_of = (one.to(kind).detach().requires_grad_() for one in (gate, wide))
        value = gated(gate_of, wide_of, activation, None)
        results.append([value.detach(), *torch.autograd.grad(value, (gate_of, wide_of), gradient.to(kind))])
    ours = [kernels.gated(gate, wide, activation), *kernels.gated_backward(gradient, gate, wide, activation)]
    for one, by_torch, exact in zip(ours, *results, strict=True):
        assert_no_worse(one, by_torch, exact)


@pytest.mark.parametrize("tanh", [True, False])
def test_what_is_far_from_zero_is_itself_or_nothing_and_what_is_no_number_stays_none(
    machine: Machine, tanh: bool
) -> None:
    x = torch.tensor([[1e20, 3e38, -1e20, -3e38, torch.nan, torch.inf]], device=machine.device)
    kernels = CudaActivations(machine.runner)
    value = kernels.bias_gelu(x, None, tanh)
    slope, no_bias = kernels.bias_gelu_backward(torch.ones_like(x), x, None, tanh)
    assert value[0, :4].tolist() == [x[0, 0].item(), x[0, 1].item(), 0, 0] and slope[0, :4].tolist() == [1, 1, 0, 0]
    assert value[0, 4].isnan() and slope[0, 4].isnan() and value[0, 5] == torch.inf
    assert no_bias is None


def test_a_bias_gradient_is_the_same_in_every_order_of_threads(machine: Machine) -> None:
    shape = (300, 40)  # several blocks below each other
    x, gradient = (numbers(shape, torch.float32, machine, 0, seed) for seed in (1, 2))
    bias = numbers((40,), torch.float32, machine, 0, 3)
    results = [CudaActivations(runner).bias_gelu_backward(gradient, x, bias, True) for runner in machine.runners]
    for of_x, of_bias in results:
        assert of_bias is not None and results[0][1] is not None
        assert torch.equal(of_x, results[0][0]) and torch.equal(of_bias, results[0][1])


def test_gradients_come_through_autograd_of_any_shape_and_layout(machine: Machine) -> None:
    kernels = CudaActivations(machine.runner)
    x, bias = torch.randn(4, 6, 10, device=machine.device), torch.randn(10, device=machine.device)
    gate, gradient = torch.randn(10, 6, 4, device=machine.device), torch.randn(10, 4, 6, device=machine.device)
    for chosen in (kernels, None):
        leaves = [one.clone().requires_grad_() for one in (x, bias, gate)]
        bent = bias_gelu(leaves[0], leaves[1], True, chosen).permute(2, 0, 1)
        product = gated(leaves[2].transpose(1, 2), bent, "silu", chosen)
        got = [product, *torch.autograd.grad(product, leaves, gradient)]
        if chosen is kernels:
            ours = got
    for one, by_torch in zip(ours, got, strict=True):
        assert torch.allclose(one, by_torch, atol=1e-6, rtol=1e-5)


def test_nothing_gives_nothing(machine: Machine) -> None:
    kernels, empty = CudaActivations(machine.runner), torch.empty(0, 8, device=machine.device)
    of_x, of_bias = kernels.bias_gelu_backward(empty, empty, torch.ones(8, device=machine.device), True)
    assert kernels.bias_gelu(empty, None, True).shape == of_x.shape == (0, 8)
    assert of_bias is not None and of_bias.tolist() == [0] * 8
    assert kernels.gated(empty, empty, "silu").shape == (0, 8)
    assert [one.shape for one in kernels.gated_backward(empty, empty, empty, "silu")] == [(0, 8)] * 2


def test_a_dtype_without_kernels_is_refused_by_name(machine: Machine) -> None:
    with pytest.raises(TypeError, match=r"float64.*float32"):
        CudaActivations(machine.runner).bias_gelu(torch.ones(2, 2, dtype=torch.float64), None, True)
