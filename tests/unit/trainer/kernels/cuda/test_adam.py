"""Adam and sums of squares by CUDA kernels, beside torch.optim.AdamW and fp64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.unit.trainer.kernels.conftest import Machine
from tests.unit.trainer.kernels.rounding import assert_no_worse, misaligned
from trainer.kernels.adam import AdamBuffers, AdamSettings
from trainer.kernels.cuda.adam import CudaAdam

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
#: Of several chunks, of one, of no whole vector, and none at all.
SIZES = (9_001, 64, 3, 0, 4_096)
RATE, BETAS, EPSILON, DECAY = 3e-3, (0.9, 0.95), 1e-8, 0.1


def settings(step: int) -> AdamSettings:
    return AdamSettings(RATE, *BETAS, EPSILON, DECAY, step)


def drawn(size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def buffers(
    machine: Machine, gradient: torch.dtype, half: torch.dtype | None, sizes: tuple[int, ...] = SIZES, off: int = 0
) -> list[AdamBuffers]:
    """As a training begins; gradients are for the test to set."""
    made = []
    for number, size in enumerate(sizes):
        weight = drawn(size, number).to(machine.device)
        tensors = weight, torch.zeros_like(weight, dtype=gradient), torch.zeros_like(weight), torch.zeros_like(weight)
        copy = None if half is None else torch.empty_like(weight, dtype=half)
        aside = [misaligned(one, off) for one in tensors]
        made.append(AdamBuffers(aside[0], aside[1], aside[2], aside[3], copy))
    return made


@pytest.mark.parametrize(
    ("gradient", "half"),
    [(torch.float32, half) for half in (None, torch.bfloat16, torch.float16)]
    + [(dtype, half) for dtype in (torch.float16, torch.bfloat16) for half in (None, dtype)],
    ids=str,
)
@pytest.mark.parametrize("scale_on_device", [False, True])
def test_steps_are_torchs_adamws(
    machine: Machine, gradient: torch.dtype, half: torch.dtype | None, scale_on_device: bool
) -> None:
    ours, kernels, scale = buffers(machine, gradient, half), CudaAdam(machine.runner), 0.37
    theirs = [
        [torch.nn.Parameter(one.weight.to(dtype, copy=True)) for one in ours]
        for dtype in (torch.float32, torch.float64)
    ]
    optimizers = [torch.optim.AdamW(one, RATE, BETAS, EPSILON, DECAY) for one in theirs]
    for step in range(1, 6):
        for number, one in enumerate(ours):
            one.gradient.copy_(drawn(len(one.gradient), 100 * step + number) * 0.01)
            for parameters in theirs:
                parameters[number].grad = one.gradient.to(parameters[number].dtype) * scale
        by = torch.tensor(scale, dtype=torch.float64, device=machine.device) if scale_on_device else scale
        kernels.step(ours, settings(step), by)
        for optimizer in optimizers:
            optimizer.step()
    for one, by_torch, exact in zip(ours, *theirs, strict=True):
        if not one.weight.numel():
            continue
        assert_no_worse(one.weight, by_torch.detach(), exact.detach())
        for name, moment in (("exp_avg", one.first), ("exp_avg_sq", one.second)):
            found = [
                optimizer.state[parameter][name]
                for optimizer, parameter in zip(optimizers, (by_torch, exact), strict=True)
            ]
            assert_no_worse(moment, *found)
        if half is not None:
            assert one.half is not None and torch.equal(one.half, one.weight.to(half))


@pytest.mark.parametrize("gradient", DTYPES, ids=str)
def test_a_step_has_the_same_bits_in_whatever_pieces_and_wherever_they_lie(
    machine: Machine, gradient: torch.dtype
) -> None:
    together = buffers(machine, gradient, None, (9_001,))
    one = together[0]
    one.gradient.copy_(drawn(9_001, 5))
    one.first.copy_(drawn(9_001, 6))
    one.second.copy_(drawn(9_001, 7).square())
    pieces = [
        AdamBuffers(*(misaligned(tensor[part], off) for tensor in (one.weight, one.gradient, one.first, one.second)))
        for off, part in ((1, slice(0, 7)), (3, slice(7, 5_000)), (0, slice(5_000, 9_001)))
    ]
    for runner, changed in zip(machine.runners, (together, pieces), strict=False):
        CudaAdam(runner).step(changed, settings(3), 0.7)
    if len(machine.runners) == 1:
        CudaAdam(machine.runner).step(pieces, settings(3), 0.7)
    for name in ("weight", "first", "second"):
        assert torch.equal(torch.cat([getattr(piece, name) for piece in pieces]), getattr(one, name)), name


def test_dtypes_that_no_kernel_pairs_are_refused_by_name(machine: Machine) -> None:
    kernels = CudaAdam(machine.runner)
    mixed = buffers(machine, torch.bfloat16, torch.float16, (8,))
    with pytest.raises(TypeError, match=r"bfloat16.*float16"):
        kernels.step(mixed, settings(1))
    assert kernels.refuses(torch.bfloat16, torch.bfloat16) is None


@pytest.mark.parametrize("off", [0, 1])
def test_squares_are_summed_as_in_fp64_in_every_order_of_threads(machine: Machine, off: int) -> None:
    gradients = [
        misaligned((drawn(size, number) * 10.0**number).to(machine.device, dtype), off)
        for number, (size, dtype) in enumerate(
            [
                (40_001, torch.float32),
                (3, torch.bfloat16),
                (0, torch.float32),
                (501, torch.float16),
                (70, torch.float32),
            ]
        )
    ]
    totals = [CudaAdam(runner).squares(gradients) for runner in machine.runners]
    exact = math.fsum(value * value for one in gradients for value in one.double().tolist())
    assert all(torch.equal(total, totals[0]) for total in totals)
    assert totals[0].shape == (1,) and totals[0].dtype == torch.float64
    assert totals[0].item() == pytest.approx(exact, rel=1e-13)


def test_squares_depend_on_no_address(machine: Machine) -> None:
    gradient, kernels = drawn(40_001, 1).to(machine.device), CudaAdam(machine.runner)
    aligned, aside = (kernels.squares([misaligned(gradient, off)]) for off in (0, 3))
    assert torch.equal(aligned, aside)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_gradient_that_is_no_number_shows_in_the_sum(machine: Machine, dtype: torch.dtype, value: float) -> None:
    gradients = [torch.ones(5_000, dtype=dtype, device=machine.device), torch.ones(9, device=machine.device)]
    gradients[0][4_999] = value
    assert not CudaAdam(machine.runner).squares(gradients).isfinite()


def test_great_finite_gradients_have_a_finite_sum(machine: Machine) -> None:
    greatest = torch.finfo(torch.float32).max
    total = CudaAdam(machine.runner).squares([torch.full((1_000,), greatest, device=machine.device)])
    assert total.item() == pytest.approx(1_000 * greatest**2, rel=1e-13)


def test_no_gradients_have_the_sum_zero(machine: Machine) -> None:
    assert CudaAdam(machine.runner).squares([]).tolist() == [0]
    assert CudaAdam(machine.runner).squares([torch.empty(0, device=machine.device)]).tolist() == [0]
