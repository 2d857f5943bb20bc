"""Softmax by torch and by CUDA kernels, beside fp64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.unit.trainer.kernels.conftest import Machine
from tests.unit.trainer.kernels.rounding import assert_no_worse, misaligned
from trainer.kernels.cuda.softmax import CudaSoftmax, geometry
from trainer.kernels.softmax import scaled_softmax

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Fill unwritten elements with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class Case:
    """Scores of [b, n, q, k]; `mask` is its shape; tensors begin `off` elements behind an aligned address."""

    b: int
    n: int
    q: int
    k: int
    causal: bool = False
    alibi: bool = False
    mask: tuple[int, int, int] | None = None
    off: int = 0
    scale: float = 0.3

    def __str__(self) -> str:
        words = [f"{self.b}x{self.n}x{self.q}x{self.k}", "causal" * self.causal, "alibi" * self.alibi]
        words += ["mask" * (self.mask is not None), f"off{self.off}" * bool(self.off)]
        return "-".join(word for word in words if word)

    def inputs(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
        """(scores, mask, slopes, gradient)."""
        generator = torch.Generator().manual_seed(7)
        shape = (self.b, self.n, self.q, self.k)
        scores, gradient = (torch.randn(shape, generator=generator).mul(4).to(dtype) for _ in range(2))
        mask = None if self.mask is None else torch.rand((*self.mask, self.k), generator=generator) < 0.4
        slopes = torch.tensor([2.0 ** -(1 + head) for head in range(self.n)]) if self.alibi else None
        placed = [None if one is None else one.to(device) for one in (scores, mask, slopes, gradient)]
        scores, gradient = (misaligned(one, self.off) for one in (placed[0], placed[3]) if one is not None)
        return scores, placed[1], placed[2], gradient


# Each form of the kernels at its ends; rows that begin anywhere, and none that is a whole number of vectors.
CASES = [
    Case(2, 3, 4, 1),
    Case(2, 3, 5, 31, causal=True, alibi=True),
    Case(2, 2, 3, 33, mask=(2, 1, 1)),
    Case(1, 2, 70, 70, causal=True, off=1),
    Case(1, 3, 3, 257, causal=True, alibi=True, mask=(1, 3, 3), off=3),
    Case(2, 1, 2, 1017, alibi=True),
    Case(1, 1, 3, 1024, causal=True, mask=(1, 1, 1)),
    Case(1, 2, 3, 1023, off=5, alibi=True, causal=True),
    Case(1, 1, 2, 2049, causal=True, alibi=True, off=2),
    Case(1, 2, 1, 3001, mask=(1, 2, 1)),
]
# Of each dtype the other cases' long rows show enough.
LONG_CASES = [
    (Case(1, 1, 1, 16_384, alibi=True), torch.float32),
    (Case(1, 1, 1, 16_384, off=1), torch.float16),
    (Case(1, 1, 2, 32_768, causal=True, alibi=True, mask=(1, 1, 1)), torch.bfloat16),
    (Case(1, 1, 1, 32_765), torch.float32),
]


@pytest.mark.parametrize(("case", "dtype"), [*itertools.product(CASES, DTYPES), *LONG_CASES], ids=str)
def test_kernels_err_at_most_twice_as_much_as_torch(machine: Machine, case: Case, dtype: torch.dtype) -> None:
    scores, mask, slopes, gradient = case.inputs(dtype, machine.device)
    kernels = CudaSoftmax(machine.runner)
    exact_scores = scores.double().requires_grad_()
    exact = scaled_softmax(exact_scores, mask, case.scale, slopes, case.causal, None)
    torch_scores = scores.clone().requires_grad_()
    by_torch = scaled_softmax(torch_scores, mask, case.scale, slopes, case.causal, None)

    ours = kernels.forward(scores, mask, case.scale, slopes, case.causal)
    assert_no_worse(ours, by_torch.detach(), exact.detach())

    exact.backward(gradient.double())
    by_torch.backward(gradient)
    of_scores = kernels.backward(gradient, misaligned(ours, case.off), case.scale, case.causal)
    assert exact_scores.grad is not None
    assert torch_scores.grad is not None
    # Of rounded probabilities, as torch keeps fp32 ones between its own operations: so that is the truth.
    kept = ours.double()
    of_kept = case.scale * kept * (gradient.double() - (kept * gradient.double()).sum(-1, keepdim=True))
    fused = torch._softmax_backward_data(gradient, ours, -1, dtype).mul(case.scale)
    assert_no_worse(of_scores, fused, of_kept)
    if dtype == torch.float32:
        assert_no_worse(of_scores, torch_scores.grad, exact_scores.grad)


@pytest.mark.parametrize("k", [31, 1025, 16_390])
def test_no_order_of_threads_changes_a_bit(machine: Machine, k: int) -> None:
    case = Case(1, 2, 3, k, causal=True, alibi=True, mask=(1, 1, 3), off=1)
    scores, mask, slopes, gradient = case.inputs(torch.bfloat16, machine.device)
    first = None
    for runner in machine.runners:
        out = CudaSoftmax(runner).forward(scores, mask, 0.3, slopes, True)
        of_scores = CudaSoftmax(runner).backward(gradient, out, 0.3, True)
        first = first or (out, of_scores)
        assert torch.equal(out, first[0])
        assert torch.equal(of_scores, first[1])


@pytest.mark.parametrize("k", [5, 2000, 20_000])
@pytest.mark.parametrize("by", ["torch", "kernels"])
def test_a_row_of_which_no_key_counts_gives_zeros_and_no_gradient(machine: Machine, k: int, by: str) -> None:
    kernels = CudaSoftmax(machine.runner) if by == "kernels" else None
    scores = torch.randn(1, 1, 4, k, device=machine.device).to(torch.float16)
    scores[0, 0, 1] = -torch.inf
    scores[0, 0, 2] = -6e4
    scores[0, 0, 3, 1:] = -torch.inf
    mask = torch.zeros(1, 1, 4, k, dtype=torch.bool, device=machine.device)
    mask[0, 0, 0] = True
    scores.requires_grad_()
    weights = scaled_softmax(scores, mask, 2.0, None, False, kernels)
    assert weights[0, 0, :2].count_nonzero() == 0  # all masked; all -inf
    assert torch.allclose(weights[0, 0, 2].float(), torch.full((k,), 1 / k, device=machine.device), rtol=1e-3)
    assert weights[0, 0, 3].tolist() == [1.0] + [0.0] * (k - 1)
    weights.backward(torch.randn_like(weights))
    assert scores.grad is not None
    assert scores.grad[0, 0, :2].count_nonzero() == 0
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("by", ["torch", "kernels"])
def test_queries_before_the_first_key_see_nothing(machine: Machine, by: str) -> None:
    kernels = CudaSoftmax(machine.runner) if by == "kernels" else None
    scores = torch.randn(1, 2, 5, 3, device=machine.device)
    weights = scaled_softmax(scores, None, 1.0, None, True, kernels)
    assert weights[:, :, :2].count_nonzero() == 0
    assert weights[:, :, 2].tolist() == [[[1.0, 0.0, 0.0]] * 2]
    assert torch.allclose(weights[:, :, 4], scores[:, :, 4].softmax(-1))


def test_what_is_no_number_makes_its_row_none_and_no_other(machine: Machine) -> None:
    scores = torch.zeros(1, 1, 4, 40, device=machine.device)
    scores[0, 0, 0, 3] = torch.nan
    scores[0, 0, 1, 3] = torch.inf
    scores[0, 0, 2] = torch.nan
    weights = CudaSoftmax(machine.runner).forward(scores, None, 1.0, None, False)
    assert weights[0, 0, :3].isnan().all()
    assert torch.equal(weights[0, 0, 3], scores[0, 0, 3].softmax(-1))


@pytest.mark.parametrize("value", [1e4, -1e4, 1e-41])
def test_great_and_tiny_scores_lose_nothing(machine: Machine, value: float) -> None:
    scores = torch.full((1, 1, 2, 1500), value, device=machine.device) + torch.linspace(
        0, abs(value) / 1e3, 1500, device=machine.device
    )
    weights = CudaSoftmax(machine.runner).forward(scores, None, 1.0, None, False)
    assert_no_worse(weights, scores.softmax(-1), scores.double().softmax(-1))
    gradient = torch.full_like(scores, 1e-41) * torch.arange(1500, device=machine.device)
    of_scores = CudaSoftmax(machine.runner).backward(gradient, weights, 1.0, False)
    exact = torch._softmax_backward_data(gradient.double(), weights.double(), -1, torch.float64)
    assert (of_scores.double() - exact).abs().max() <= 2e-44  # less than two steps between denormal numbers


@pytest.mark.parametrize("k", [40, 1100, 17_000])
def test_a_large_gradient_that_all_keys_share_costs_no_accuracy_in_fp32(machine: Machine, k: int) -> None:
    generator = torch.Generator().manual_seed(5)
    scores, gradient = (torch.randn(1, 2, 3, k, generator=generator).to(machine.device) for _ in range(2))
    gradient += 1000
    weights = CudaSoftmax(machine.runner).forward(scores, None, 1.0, None, False)
    of_scores = CudaSoftmax(machine.runner).backward(gradient, weights, 1.0, False)
    exact = torch._softmax_backward_data(gradient.double(), weights.double(), -1, torch.float64)
    assert (of_scores.double() - exact).abs().max() <= 2 * torch.finfo(torch.float32).eps * exact.abs().max()


@pytest.mark.parametrize("k", [40, 1100, 17_000])
def test_keys_that_causality_hides_are_not_read(machine: Machine, k: int) -> None:
    scores = torch.randn(1, 1, 3, k, device=machine.device)
    hidden = torch.ones(3, k, dtype=torch.bool, device=machine.device).triu(k - 2)
    clean = CudaSoftmax(machine.runner).forward(scores, None, 1.0, None, True)
    weights = CudaSoftmax(machine.runner).forward(scores.masked_fill(hidden, torch.nan), None, 1.0, None, True)
    assert torch.equal(weights, clean)
    assert weights[0, 0][hidden].count_nonzero() == 0
    gradient = torch.randn_like(scores)
    clean = CudaSoftmax(machine.runner).backward(gradient, weights, 1.0, True)
    poisoned = gradient.masked_fill(hidden, torch.nan), weights.masked_fill(hidden, torch.nan)
    assert torch.equal(CudaSoftmax(machine.runner).backward(*poisoned, 1.0, True), clean)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 1), (1, 3, 1), (1, 1, 4), (2, 3, 4)])
def test_a_mask_of_any_strides_is_read_as_it_lies(machine: Machine, shape: tuple[int, int, int]) -> None:
    scores = torch.randn(2, 3, 4, 19, device=machine.device)
    wide = torch.rand(*shape, 38, device=machine.device) < 0.5
    mask = wide.transpose(0, 1).contiguous().transpose(0, 1)[..., ::2]
    ours = CudaSoftmax(machine.runner).forward(scores, mask, 0.5, None, False)
    expected = scaled_softmax(scores, mask.expand(2, 3, 4, 19).contiguous(), 0.5, None, False, None)
    assert torch.allclose(ours, expected, rtol=1e-6, atol=0)


def test_gradients_flow_through_scores_of_any_strides(machine: Machine) -> None:
    case = Case(2, 3, 7, 45, causal=True, alibi=True, mask=(2, 1, 1))
    scores, mask, slopes, gradient = case.inputs(torch.float32, machine.device)
    found = []
    for kernels in (None, CudaSoftmax(machine.runner)):
        leaf = scores.transpose(1, 2).contiguous().requires_grad_()
        scaled_softmax(leaf.transpose(1, 2), mask, 0.3, slopes, True, kernels).backward(gradient.transpose(2, 3).mT)
        assert leaf.grad is not None
        found.append(leaf.grad)
    by_torch, by_kernels = found
    assert torch.allclose(by_torch, by_kernels, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("causal", "alibi", "masked"), [(False, False, True), (True, True, False), (True, True, True)])
def test_gradients_by_torch_are_those_of_differences(causal: bool, alibi: bool, masked: bool) -> None:
    case = Case(1, 2, 3, 4, mask=(1, 1, 3) if masked else None, alibi=alibi)
    scores, mask, slopes, _ = case.inputs(torch.float32, torch.device("cpu"))
    if mask is not None:
        mask[0, 0, 1] = True
    of = scores.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda one: scaled_softmax(one, mask, 0.7, slopes, causal, None), of)


def test_alibi_falls_off_with_distance_exactly_at_any_length(machine: Machine) -> None:
    length, slope = 30_000, 0.5
    scores = torch.zeros(1, 1, 1, length, device=machine.device)
    slopes = torch.tensor([slope], device=machine.device)
    exact = torch.exp(-slope * torch.arange(40, dtype=torch.float64)) * (1 - torch.exp(torch.tensor(-slope).double()))
    for kernels in (None, CudaSoftmax(machine.runner)):
        near = scaled_softmax(scores, None, 1.0, slopes, True, kernels)[0, 0, 0, -40:].flip(0).double().cpu()
        assert torch.allclose(near, exact, rtol=1e-6)


def test_more_keys_than_there_are_kernels_for_are_refused_by_name() -> None:
    class NeverRuns:
        facts = None

        def launch(self, launch: object) -> None:
            raise AssertionError("launched")

    kernels = CudaSoftmax(NeverRuns())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\b32769\b.*\b32768\b"):
        kernels.forward(torch.zeros(1, 1, 1, 32_769), None, 1.0, None, False)
    with pytest.raises(ValueError, match=r"mask .*torch\.uint8.*torch\.bool"):
        kernels.forward(torch.zeros(1, 1, 1, 4), torch.zeros(4, dtype=torch.uint8), 1.0, None, False)
    with pytest.raises(ValueError, match=r"slopes .*\[3\].*\[2\]"):
        kernels.forward(torch.zeros(1, 2, 1, 4), None, 1.0, torch.zeros(3), False)
    with pytest.raises(TypeError, match=r"torch\.float64"):
        kernels.forward(torch.zeros(1, 2, 1, 4).double(), None, 1.0, None, False)
    assert kernels.forward(torch.zeros(0, 2, 1, 4), None, 1.0, None, False).shape == (0, 2, 1, 4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_row_fits_what_its_threads_hold(dtype: torch.dtype) -> None:
    width = 16 // dtype.itemsize
    for k in [*range(1, 20), *range(1010, 1030), *range(16_370, 16_390), 32_768]:
        for off in range(width):
            scores = misaligned(torch.empty(1, 1, 3, k, dtype=dtype), off)
            form, blocks, threads = geometry(3, k, scores)
            of_row = 32 if form == "warp" else threads
            # The furthest vector of the row that begins least aligned.
            reach = max((off + row * k) % width + k for row in range(3))
            assert form == "tiles" or reach <= of_row * 32
            assert threads % 32 == 0
            assert blocks * (threads // 32 if form == "warp" else 1) >= 3
