"""Cross entropy's passes over the logits by CUDA kernels, beside torch and fp64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.emulator.runner import SMALL_GPU, EmulatedRunner
from tests.unit.trainer.kernels.conftest import Machine
from tests.unit.trainer.kernels.rounding import assert_no_worse, misaligned
from trainer.kernels.cuda.cross_entropy import CudaCrossEntropy

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
#: tokens, rows of the vocabulary, of them real ones, by how many elements the logits are misaligned. Blocks of 128 to
#: 512 threads, rows shorter than a vector, rows that begin at every distance from an aligned address.
SHAPES = [(1, 1, 1, 0), (9, 7, 5, 0), (5, 257, 257, 0), (8, 1003, 1000, 1), (2, 4104, 4096, 0), (2, 8_203, 8_200, 3)]


def numbers(
    shape: tuple[int, int, int, int], dtype: torch.dtype, machine: Machine
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Logits, labels of which one is another rank's, shares of which one is 0, and where padding begins."""
    tokens, rows, real, off = shape
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(tokens, rows, generator=generator) * 4
    logits[0, real // 2] = 30
    if real > 2:
        logits[-1, : real // 2] = -torch.inf
    logits[:, real:] = torch.nan  # what only pads the vocabulary has no say
    labels = torch.randint(real // 2, real, (tokens,), generator=generator)
    shares = torch.rand(tokens, generator=generator)
    if tokens > 2:
        labels[1], shares[2] = -3, 0
    return misaligned(logits.to(machine.device, dtype), off), labels.to(machine.device), shares.to(machine.device), real


def by_torch(
    logits_tv: Tensor, labels_t: Tensor, share_t: Tensor, real: int, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the log of the sum, and the gradient with 0 for padding."""
    counted = logits_tv[:, :real].to(kind).detach().requires_grad_()
    log_sum_t = counted.logsumexp(dim=-1)
    label_logit_t = counted.gather(1, labels_t.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    losses_t = log_sum_t - label_logit_t.masked_fill(labels_t < 0, 0)
    (gradient_tv,) = torch.autograd.grad((losses_t * share_t.to(kind)).sum(), counted)
    return log_sum_t.detach(), torch.nn.functional.pad(gradient_tv, (0, logits_tv.shape[1] - real))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_statistics_and_gradients_are_as_near_to_fp64_as_torchs(
    machine: Machine, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    logits, labels, shares, real = numbers(shape, dtype, machine)
    log_sum_64, gradient_64 = by_torch(logits, labels, shares, real, torch.float64)
    log_sum_32, _ = by_torch(logits, labels, shares, real, torch.float32)
    _, of_torch = by_torch(logits, labels, shares, real, dtype)
    kernels = CudaCrossEntropy(machine.runner)
    greatest, total, label_logit = kernels.statistics(logits, labels, real)
    assert torch.equal(greatest, logits[:, :real].float().amax(dim=-1))
    label_logits = logits.gather(1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1).float()
    assert torch.equal(label_logit, label_logits.masked_fill(labels < 0, 0))
    assert_no_worse(greatest + total.log(), log_sum_32, log_sum_64)
    kernels.to_gradient(logits, labels, greatest + total.log(), shares, real)
    assert_no_worse(logits, of_torch, gradient_64)
    assert not logits[:, real:].any() and not logits[shares == 0].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shared_bytes", [164 << 10, 4 << 10], ids=["kept", "read again"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_launch_gives_what_two_give(
    machine: Machine, shape: tuple[int, int, int, int], shared_bytes: int, dtype: torch.dtype
) -> None:
    logits, labels, shares, real = numbers(shape, dtype, machine)
    two, kernels = logits.clone(), CudaCrossEntropy(machine.runner)
    if isinstance(machine.runner, EmulatedRunner):
        facts = replace(SMALL_GPU, shared_bytes_per_multiprocessor=shared_bytes, shared_bytes_per_block=shared_bytes)
        kernels = CudaCrossEntropy(EmulatedRunner(order="warps_ahead", facts=facts))
    log_sum, label_logit = kernels.whole(logits, labels, shares, real)
    greatest, total, wanted = kernels.statistics(two, labels, real)
    kernels.to_gradient(two, labels, log_sum, shares, real)
    assert torch.allclose(log_sum, greatest + total.log(), rtol=1e-6) and torch.equal(label_logit, wanted)
    if logits.data_ptr() % 16 == two.data_ptr() % 16:
        assert torch.equal(logits, two)
    assert torch.allclose(logits.float(), two.float(), atol=1e-6, rtol=1e-2)


@pytest.mark.parametrize("shape", [SHAPES[3]], ids=str)
def test_every_order_of_threads_gives_the_same_bits(machine: Machine, shape: tuple[int, int, int, int]) -> None:
    logits, labels, shares, real = numbers(shape, torch.bfloat16, machine)
    results: list[tuple[Any, ...]] = []
    for runner in machine.runners:
        kernels, own = CudaCrossEntropy(runner), logits.clone()
        found = kernels.statistics(own, labels, real)
        log_sum, label_logit = kernels.whole(own, labels, shares, real)
        results.append((*found, log_sum, label_logit, own))
    for one in results:
        assert all(torch.equal(ours, first) for ours, first in zip(one, results[0], strict=True))


def test_a_rank_with_padding_alone_has_nothing_to_say_and_gradients_of_zero(machine: Machine) -> None:
    logits = torch.full((3, 40), torch.nan, device=machine.device)
    labels, shares = torch.full((3,), -1, device=machine.device), torch.ones(3, device=machine.device)
    kernels = CudaCrossEntropy(machine.runner)
    greatest, total, label_logit = kernels.statistics(logits, labels, 0)
    assert greatest.tolist() == [-torch.inf] * 3 and total.tolist() == label_logit.tolist() == [0] * 3
    kernels.to_gradient(logits, labels, torch.ones(3, device=machine.device), shares, 0)
    assert not logits.any()


def test_a_logit_that_is_no_number_is_not_hidden(machine: Machine) -> None:
    logits = torch.zeros(2, 300, device=machine.device)
    logits[0, 299], logits[1, 7] = torch.nan, torch.inf
    _, total, _ = CudaCrossEntropy(machine.runner).statistics(logits, torch.zeros(2).long().to(logits.device), 300)
    assert total.isnan().all()


def test_no_tokens_are_no_launch(machine: Machine) -> None:
    logits, labels = torch.empty(0, 8, device=machine.device), torch.empty(0, dtype=torch.int64, device=machine.device)
    assert [len(one) for one in CudaCrossEntropy(machine.runner).statistics(logits, labels, 8)] == [0, 0, 0]


@pytest.mark.parametrize("rows", [5, 64, 2048])
def test_a_row_of_no_numbers_stays_one_for_the_other_ranks(machine: Machine, rows: int) -> None:
    logits = torch.full((2, rows), torch.nan, device=machine.device)
    logits[1] = -torch.inf
    labels = torch.full((2,), -1, device=machine.device)
    _, total, _ = CudaCrossEntropy(machine.runner).statistics(logits, labels, rows)
    assert total[0].isnan() and total[1] == 0
