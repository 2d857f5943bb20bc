"""Cross entropy in C++ against fp64, and against torch's operations of the same type."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from tests.native_libraries import built_library
from tests.unit.trainer.model.test_model_parts import alone
from trainer.kernels.choice import Operations
from trainer.kernels.cpp import CppCrossEntropy
from trainer.parallel.cross_entropy import masked_mean_cross_entropy

#: Tokens, columns, how many of these count: a vector and its rest, blocks of 2048 and theirs, padding in a vector.
SHAPES = [(1, 1, 1), (3, 7, 7), (5, 8, 5), (2, 33, 17), (7, 2048, 2048), (3, 4099, 4097), (2, 6000, 2050)]


@pytest.fixture
def kernels() -> CppCrossEntropy:
    return CppCrossEntropy(built_library("operations"))


def drawn(tokens: int, columns: int, counted: int, dtype: torch.dtype, spread: float) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens * columns)
    logits = (spread * torch.randn(tokens, columns, generator=generator)).to(dtype)
    logits[:, counted:] = torch.nan  # no one may look there
    labels = torch.randint(0, counted, (tokens,), generator=generator)
    labels[::3] = -1  # another rank's
    return logits, labels, torch.rand(tokens, generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.1, 30.0])
@pytest.mark.parametrize(("tokens", "columns", "counted"), SHAPES)
def test_statistics_and_gradients_are_those_of_fp64(
    tokens: int, columns: int, counted: int, spread: float, dtype: torch.dtype, kernels: CppCrossEntropy
) -> None:
    logits, labels, share = drawn(tokens, columns, counted, dtype, spread)
    exact = logits[:, :counted].double()
    greatest, total, label_logit = kernels.statistics(logits, labels, counted)
    assert torch.equal(greatest.double(), exact.amax(dim=-1))
    exact_sum = (exact - exact.amax(dim=-1, keepdim=True)).exp().sum(dim=-1)
    assert torch.allclose(total.double(), exact_sum, rtol=3e-7, atol=0)
    exact_label = exact.gather(1, labels.clamp(min=0).unsqueeze(1)).squeeze(1).masked_fill(labels < 0, 0)
    assert torch.equal(label_logit.double(), exact_label)

    wanted, log_sum, once_more = _exact_gradient(exact, labels, share), greatest + total.log(), logits.clone()
    bound = 2 * (_torch_gradient(logits[:, :counted].clone(), labels, share).double() - wanted).abs().max() + 1e-7
    log_sum_of_whole, label_logit_of_whole = kernels.whole(once_more, labels, share, counted)
    assert torch.allclose(log_sum_of_whole.double(), exact.logsumexp(dim=-1), rtol=2e-7, atol=2e-7)
    assert torch.equal(label_logit_of_whole, label_logit)
    assert not once_more[:, counted:].any() and (once_more[:, :counted].double() - wanted).abs().max() <= bound
    # Between the passes the log of the sum is rounded, by up to half of its last place, and with it each probability.
    kernels.to_gradient(logits, labels, log_sum, share, counted)
    of_rounding = log_sum.abs().max() * 2**-24
    assert not logits[:, counted:].any() and (logits[:, :counted].double() - wanted).abs().max() <= bound + of_rounding


def _exact_gradient(exact: Tensor, labels: Tensor, share: Tensor) -> Tensor:
    wanted = exact.softmax(dim=-1)
    wanted[torch.arange(len(labels)), labels.clamp(min=0)] -= (labels >= 0).double()
    return wanted * share.double().unsqueeze(1)


def _torch_gradient(logits: Tensor, labels: Tensor, share: Tensor) -> Tensor:
    """By log_softmax and its backward in the type of the logits."""
    logits.requires_grad_()
    picked = logits.log_softmax(dim=-1).gather(1, labels.clamp(min=0).unsqueeze(1)).squeeze(1)
    # A label that is elsewhere leaves the log of the sum, whose gradient is the softmax.
    losses = torch.where(labels < 0, logits.logsumexp(dim=-1), -picked)
    (losses.float() * share).sum().backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype, kernels: CppCrossEntropy) -> None:
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            logits, labels, share = drawn(13, 5000, 4999, dtype, 2.0)
            greatest, total, label_logit = kernels.statistics(logits, labels, 4999)
            kernels.to_gradient(logits, labels, greatest + total.log(), share, 4999)
            in_one = drawn(13, 5000, 4999, dtype, 2.0)[0]
            found.append((total, label_logit, logits, in_one, *kernels.whole(in_one, labels, share, 4999)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for more in found[1:] for one, other in zip(found[0], more, strict=True))


def test_a_rank_with_padding_alone_has_a_sum_of_nothing(kernels: CppCrossEntropy) -> None:
    logits, labels = torch.randn(2, 24), torch.tensor([-1, -1])
    greatest, total, label_logit = kernels.statistics(logits, labels, 0)
    assert greatest.eq(-torch.inf).all() and not total.any() and not label_logit.any()
    kernels.to_gradient(logits, labels, torch.zeros(2), torch.ones(2), 0)
    assert not logits.any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 9, 20])
def test_what_is_no_number_is_none_in_the_sum_and_in_all_of_its_rows_gradient(
    value: float, place: int, kernels: CppCrossEntropy
) -> None:
    logits, labels = torch.randn(2, 21), torch.tensor([3, 4])
    logits[1, place] = value
    greatest, total, _ = kernels.statistics(logits, labels, 21)
    assert total[0].isfinite() and total[1].isnan()
    kernels.to_gradient(logits, labels, greatest + total.log(), torch.ones(2), 21)
    assert logits[0].isfinite().all() and logits[1].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_has_the_same_value_and_gradients_with_kernels_and_without(
    dtype: torch.dtype, kernels: CppCrossEntropy
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 9, 16, dtype=dtype), torch.randn(40, 16, dtype=dtype)
    labels, mask = torch.randint(0, 37, (2, 9)), torch.rand(2, 9).round()
    found = []
    for operations in (Operations(), Operations(cross_entropy=kernels)):
        parallel = dataclasses.replace(alone(), operations=operations)
        own_x, own_weight = (one.clone().requires_grad_() for one in (x, weight))
        loss = masked_mean_cross_entropy(own_x, own_weight, labels, mask, 37, parallel)
        found.append((loss, *torch.autograd.grad(loss, (own_x, own_weight))))
    for by_torch, by_kernels in zip(*found, strict=True):
        assert torch.allclose(by_torch, by_kernels, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-7)


def test_logits_that_it_would_read_wrongly_are_refused(kernels: CppCrossEntropy) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        kernels.statistics(torch.randn(4, 6)[:, :3], torch.zeros(4, dtype=torch.long), 3)
    with pytest.raises(ValueError, match=r"torch\.int64"):
        kernels.statistics(torch.randn(4, 6), torch.zeros(4, dtype=torch.int32), 6)
