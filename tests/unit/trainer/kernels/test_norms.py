"""Norms by torch and by CUDA kernels, beside fp64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tests.emulator.runner import SMALL_GPU
from tests.unit.trainer.kernels.conftest import Machine
from tests.unit.trainer.kernels.rounding import assert_no_worse, misaligned
from trainer.kernels.cuda.normalization import CudaNorms, backward_geometry, forward_geometry
from trainer.kernels.native.launching import DeviceFacts, KernelRunner, Launch
from trainer.kernels.normalization import added_and_normalized, normalized

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EPSILON = 1e-5


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Fill unwritten elements with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class Case:
    """r rows of h; tensors begin `off` elements behind an aligned address."""

    r: int
    h: int
    rms: bool = False
    bias: bool = True
    residual: bool = False
    off: int = 0

    def __str__(self) -> str:
        words = [f"{self.r}x{self.h}", "rms" * self.rms, "nobias" * (not self.bias), "residual" * self.residual]
        return "-".join(word for word in [*words, f"off{self.off}" * bool(self.off)] if word)

    def inputs(self, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        """x, residual, weight, bias, and the gradients of the sum and of its norm."""
        generator = torch.Generator().manual_seed(11)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        made = {name: normal(self.r, self.h) for name in ("x", "residual", "of_total", "of_y")}
        made["x"] = made["x"] * 3 + 5  # a mean that is no small part of the numbers
        made |= {"weight": 1 + normal(self.h) / 2, "bias": normal(self.h)}
        return {name: misaligned(one.to(device, dtype), self.off) for name, one in made.items()}


# Each form of the kernels at its ends, in 16 bits and in fp32; and rows of no whole number of vectors.
CASES = [
    Case(3, 1),
    Case(5, 31),
    Case(70, 33, residual=True, off=1),
    Case(9, 256, rms=True, bias=False),
    Case(6, 257, residual=True),
    Case(40, 512, residual=True, rms=True, bias=False),
    Case(7, 1023, off=3),
    Case(7, 1024, residual=True),
    Case(19, 1032, bias=False),
    Case(3, 4100, rms=True, bias=False, residual=True),
]
# Of each dtype the other cases' long rows show enough.
LONG_CASES = [
    (Case(3, 3000), torch.float32),
    (Case(3, 8192), torch.float32),
    (Case(2, 8192), torch.bfloat16),
    (Case(2, 8200, residual=True, off=2), torch.float16),
    (Case(2, 16_384, rms=True, bias=False), torch.bfloat16),
    (Case(3, 16_392, residual=True), torch.bfloat16),
    (Case(1, 20_001, bias=False), torch.float32),
    (Case(5, 32_768), torch.float16),
]

Results = dict[str, Tensor]


def by_family(case: Case, inputs: dict[str, Tensor], kernels: CudaNorms | None) -> Results:
    """Return the results of the family's functions, with autograd's gradients."""
    leaves = {name: inputs[name].clone().requires_grad_() for name in ("x", "residual", "weight", "bias")}
    bias = leaves["bias"] if case.bias else None
    if case.residual:
        total, y = added_and_normalized(
            leaves["x"], leaves["residual"], leaves["weight"], bias, EPSILON, case.rms, kernels
        )
        torch.autograd.backward([total, y], [inputs["of_total"], inputs["of_y"]])
    else:
        total, y = inputs["x"], normalized(leaves["x"], leaves["weight"], bias, EPSILON, case.rms, kernels)
        y.backward(inputs["of_y"])
    found = {"total": total.detach(), "y": y.detach()}
    found |= {f"of_{name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return found


@pytest.mark.parametrize(("case", "dtype"), [*itertools.product(CASES, DTYPES), *LONG_CASES], ids=str)
def test_kernels_err_at_most_twice_as_much_as_torch(machine: Machine, case: Case, dtype: torch.dtype) -> None:
    inputs = case.inputs(dtype, machine.device)
    if case.residual and dtype != torch.float32:  # their sum is rounded before its norm is taken: no error of ours
        inputs["residual"] = (inputs["x"] + inputs["residual"]) - inputs["x"]
        inputs["x"] = (inputs["x"] + inputs["residual"]) - inputs["residual"]
    ours = by_family(case, inputs, CudaNorms(machine.runner))
    by_torch = by_family(case, inputs, None)
    exact = by_family(case, {name: one.double() for name, one in inputs.items()}, None)
    assert ours.keys() == exact.keys()
    for name in exact:
        assert_no_worse(ours[name], by_torch[name], exact[name])


@pytest.mark.parametrize("h", [40, 1100, 17_000])
def test_no_order_of_threads_changes_a_bit(machine: Machine, h: int) -> None:
    case = Case(11, h, residual=True, off=1)
    inputs = case.inputs(torch.bfloat16, machine.device)
    first: Results | None = None
    for runner in machine.runners:
        found = by_family(case, inputs, CudaNorms(runner))
        first = first or found
        assert all(torch.equal(found[name], first[name]) for name in found)


@pytest.mark.parametrize("form", ["torch", "kernels"])
@pytest.mark.parametrize("rms", [False, True])
def test_rows_of_one_value_and_of_great_ones_lose_nothing(machine: Machine, rms: bool, form: str) -> None:
    h = 1500
    x = torch.full((4, h), 1e4, device=machine.device)
    x[1] += torch.linspace(-1, 1, h, device=machine.device)  # its variance is 1e-8 of the mean's square
    x[2] = 1e-30
    x[3] = torch.linspace(-1e17, 1e17, h, device=machine.device)
    weight = torch.ones(h, device=machine.device)
    kernels = CudaNorms(machine.runner) if form == "kernels" else None
    y = normalized(x, weight, None, EPSILON, rms, kernels)
    exact = normalized(x.double(), weight.double(), None, EPSILON, rms, None)
    # Of the nearly equal ones torch's own kernel on a GPU (2.11, H100) is 0.0026 off.
    of_near = 4e-3 if form == "torch" and machine.device.type == "cuda" else 2e-3
    for row in range(4):
        assert torch.allclose(y[row].double(), exact[row], rtol=2e-6, atol=0 if rms else of_near if row == 1 else 1e-2)


def test_statistics_are_fp32_and_those_of_the_rounded_sum(machine: Machine) -> None:
    inputs = Case(5, 700).inputs(torch.bfloat16, machine.device)
    total, _, mean, deviation = CudaNorms(machine.runner).add_forward(
        inputs["x"], inputs["residual"], inputs["weight"], None, EPSILON, False
    )
    assert torch.equal(total, inputs["x"] + inputs["residual"])
    assert mean is not None
    assert (mean.dtype, deviation.dtype) == (torch.float32, torch.float32)
    assert torch.allclose(mean.double(), total.double().mean(-1), rtol=1e-6)
    variance = total.double().var(-1, unbiased=False)
    assert torch.allclose(deviation.double(), (variance + EPSILON).rsqrt(), rtol=1e-6)


class Facts:
    """A runner like another, of a device with other facts."""

    def __init__(self, runner: KernelRunner, facts: DeviceFacts) -> None:
        self._runner, self.facts = runner, facts

    def launch(self, launch: Launch) -> None:
        self._runner.launch(launch)


@pytest.mark.parametrize("h", [1500, 9000])
def test_weights_gradients_need_no_shared_memory(machine: Machine, h: int) -> None:
    case = Case(23, h)
    inputs = case.inputs(torch.float16, machine.device)
    little = Facts(machine.runner, replace(SMALL_GPU, shared_bytes_per_block=8 << 10))
    found, expected = (by_family(case, inputs, CudaNorms(one)) for one in (little, machine.runner))
    exact = by_family(case, {name: one.double() for name, one in inputs.items()}, None)
    for name in exact:
        assert_no_worse(found[name], expected[name], exact[name])


def test_weights_gradients_are_the_same_bits_each_time(machine: Machine) -> None:
    inputs = Case(300, 96).inputs(torch.float32, machine.device)
    once, again = (by_family(Case(300, 96), inputs, CudaNorms(machine.runner)) for _ in range(2))
    assert all(torch.equal(once[name], again[name]) for name in once)


def test_gradients_flow_through_rows_of_any_strides_and_shape(machine: Machine) -> None:
    inputs = Case(12, 40).inputs(torch.float32, machine.device)
    found = []
    for kernels in (None, CudaNorms(machine.runner)):
        leaf = inputs["x"].view(3, 4, 40).transpose(0, 2).contiguous().requires_grad_()
        y = normalized(leaf.transpose(0, 2), inputs["weight"], inputs["bias"], EPSILON, False, kernels)
        assert y.shape == (3, 4, 40)
        y.backward(inputs["of_y"].view(4, 3, 40).transpose(0, 1))
        assert leaf.grad is not None
        found.append(leaf.grad)
    by_torch, by_kernels = found
    assert torch.allclose(by_torch, by_kernels, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rms", [False, True])
def test_gradients_by_torch_are_those_of_differences(rms: bool) -> None:
    inputs = Case(2, 4).inputs(torch.float32, torch.device("cpu"))
    leaves = [inputs[name].double().requires_grad_() for name in ("x", "residual", "weight", "bias")]

    def both(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return added_and_normalized(x, residual, weight, None if rms else bias, EPSILON, rms, None)

    assert torch.autograd.gradcheck(both, leaves)


def test_rows_that_there_are_no_kernels_for_are_refused_by_name(machine: Machine) -> None:
    kernels = CudaNorms(machine.runner)
    weight = torch.ones(32_769)
    with pytest.raises(ValueError, match=r"\b32769\b.*\b32768\b"):
        kernels.forward(torch.zeros(1, 32_769), weight, None, EPSILON, False)
    with pytest.raises(ValueError, match=r"torch\.float32 .*torch\.float16"):
        kernels.forward(torch.zeros(1, 8).half(), weight[:8], None, EPSILON, False)
    with pytest.raises(TypeError, match=r"torch\.float64"):
        kernels.forward(torch.zeros(1, 8).double(), weight[:8].double(), None, EPSILON, False)
    empty = kernels.backward(torch.zeros(0, 8), torch.zeros(0, 8), weight[:8], None, torch.zeros(0), None, True)
    assert [one.shape for one in empty if one is not None] == [(0, 8), (8,), (8,)]
    assert empty[1].count_nonzero() == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_row_fits_what_its_threads_hold_and_what_a_chip_has(dtype: torch.dtype) -> None:
    width = 16 // dtype.itemsize
    held = {"warp": 4, "narrow": 1, "block": 2, "wide": 4}
    v100 = replace(SMALL_GPU, shared_bytes_per_block=96 << 10, shared_bytes_per_multiprocessor=96 << 10)
    for h in [*range(1, 40), 511, 512, 513, 1024, 1025, 4096, 4097, 8192, 8193, 14_336, 16_384, 16_385, 32_768]:
        form, blocks, threads = forward_geometry(100, h)
        assert form == "tiles" or (32 if form == "warp" else threads) * 32 >= h
        assert blocks * (4 if form == "warp" else 1) >= 100
        for facts in (SMALL_GPU, v100):
            plan = backward_geometry(10_000, h, dtype, True, facts)
            of_row = 32 if plan.form == "warp" else plan.threads
            assert plan.form == "tiles" or of_row * width * held[plan.form] >= h
            assert plan.sums >= 2 * h
            assert plan.shared_bytes <= facts.shared_bytes_per_block - 1024
            assert 1 <= plan.blocks / facts.multiprocessors <= 2048 // plan.threads
