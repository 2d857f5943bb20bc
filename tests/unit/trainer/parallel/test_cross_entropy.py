"""The output layer's loss on one rank: beside torch's and fp64, and what it does with an engine's sums."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.trainer.model.test_model_parts import alone
from trainer.parallel import cross_entropy, products
from trainer.parallel.cross_entropy import lift_of, masked_mean_cross_entropy
from trainer.recipe import activations


@dataclass
class Sums:
    """An engine that multiplies the loss by `by`, and has a sum or none."""

    by: float
    total_vh: Tensor | None = None
    is_first: bool = False
    asked: list[str] = field(default_factory=list)

    def multiplier(self) -> float:
        return self.by

    def weight_sum(self) -> tuple[Tensor, bool] | None:
        self.asked.append("weight")
        return None if self.total_vh is None else (self.total_vh, self.is_first)


@pytest.fixture(params=[1, 7, 512], ids="chunks of {}".format)
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setitem(activations.LEAST_TOKENS, "cpu", request.param)
    monkeypatch.setitem(activations.LEAST_LOGITS, "cpu", 1)
    monkeypatch.setattr(products, "_BLOCK_NUMBERS", 8 * request.param)
    return int(request.param)


@pytest.fixture(params=[False, True], ids=["products in fp32", "products in bf16"])
def multiplies_bf16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether the CPU counts as one that multiplies bf16, whatever CPU runs the test."""
    monkeypatch.setattr(products, "cpu_multiplies_bf16", lambda: request.param)
    return bool(request.param)


def drawn(
    tokens: int, rows: int, hidden: int, dtype: torch.dtype, spread: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(1, tokens, hidden).to(dtype).requires_grad_()
    weight = (spread * torch.randn(rows, hidden)).to(dtype).requires_grad_()
    return x, weight, torch.randint(0, rows, (1, tokens))


def exact_gradients(x: Tensor, weight: Tensor, labels: Tensor, mask: Tensor) -> tuple[float, Tensor, Tensor]:
    """In fp64: the loss, and gradients of x and weight."""
    wide_x, wide_weight = (one.detach().double().requires_grad_() for one in (x, weight))
    logits = (wide_x @ wide_weight.T).flatten(0, 1)
    losses = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="none")
    loss = (losses * mask.flatten().double()).sum() / mask.sum()
    loss.backward()
    assert wide_x.grad is not None and wide_weight.grad is not None
    return loss.item(), wide_x.grad, wide_weight.grad


def greatest_loss_error(x: Tensor, weight: Tensor, is_rounded: bool) -> float:
    """Return how far the mean loss may be off, sums in fp32 left out of account.

    Rounding to bf16 moves a logit by at most 2^-8 of itself. So the label's logit and the log of the sum are off by at
    most 2^-8 of the token's largest logit each.
    """
    if not is_rounded:
        return 0.0
    logits_tv = x.detach()[0].double() @ weight.detach().double().T
    return float(2 * 2.0**-8 * logits_tv.abs().amax(dim=-1).mean())


def error_of(found: Tensor | None, exact: Tensor) -> float:
    assert found is not None
    return float((found.double() - exact).norm() / exact.norm())


def test_the_loss_in_chunks_is_torchs_with_its_gradients(chunk: int) -> None:
    x, weight, labels = drawn(15, 16, 8, torch.float32)
    mask = (torch.rand(1, 15) > 0.3).float()
    wanted, of_x, of_weight = exact_gradients(x, weight, labels, mask)
    loss = masked_mean_cross_entropy(x, weight, labels, mask, 16, alone())
    gradients = torch.autograd.grad(loss * 3, (x, weight))
    assert loss.item() == pytest.approx(wanted, rel=1e-6)
    assert torch.allclose(gradients[0].double(), 3 * of_x, atol=1e-6)
    assert torch.allclose(gradients[1].double(), 3 * of_weight, atol=1e-6)


@pytest.mark.usefixtures("multiplies_bf16")
def test_a_batch_without_any_label_has_loss_zero_and_no_gradient() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x, weight, labels = drawn(4, 16, 8, dtype)
        total = torch.full((16, 8), 2.0)
        loss = masked_mean_cross_entropy(
            x, weight, labels, torch.zeros(1, 4), 16, alone(), accumulation=Sums(0.25, total)
        )
        (loss * 0.25).backward()
        assert loss.item() == 0
        assert x.grad is not None and not x.grad.any() and total.eq(2).all()


def test_rows_that_pad_the_vocabulary_have_no_part_in_the_loss(chunk: int) -> None:
    x, tokens, labels = drawn(15, 13, 8, torch.float32)
    weight = torch.cat((tokens.detach(), 9 * torch.randn(7, 8))).requires_grad_()
    wanted, of_x, of_tokens = exact_gradients(x, tokens, labels, torch.ones(1, 15))
    loss = masked_mean_cross_entropy(x, weight, labels, torch.ones(1, 15), 13, alone())
    gradients = torch.autograd.grad(loss, (x, weight))
    assert loss.item() == pytest.approx(wanted, rel=1e-6)
    assert not gradients[1][13:].any()
    assert torch.allclose(gradients[0].double(), of_x, atol=1e-6)
    assert torch.allclose(gradients[1][:13].double(), of_tokens, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_of_micro_batches_are_in_the_engines_sum_as_they_would_be_in_autograds(
    chunk: int, dtype: torch.dtype, multiplies_bf16: bool
) -> None:
    is_rounded = dtype == torch.bfloat16 and multiplies_bf16
    x, weight, labels = drawn(15, 16, 8, dtype)
    mask, total, sums = torch.ones(1, 15), torch.full((16, 8), torch.nan), torch.zeros(16, 8).double()
    for number in range(3):
        micro, scale = x.detach()[:, number:].clone().requires_grad_(), 256.0 * 3 / 8
        counted, labels_of = mask[:, number:], labels[:, number:]
        taker = Sums(256.0 / 8, total, is_first=number == 0)
        wanted, of_x, of_weight = exact_gradients(micro, weight, labels_of, counted)
        loss = masked_mean_cross_entropy(micro, weight, labels_of, counted, 16, alone(), factor=3, accumulation=taker)
        (loss * 256 / 8).backward()
        sums += scale * of_weight
        assert loss.item() == pytest.approx(
            3 * wanted, rel=1e-5, abs=3 * greatest_loss_error(micro, weight, is_rounded)
        )
        assert weight.grad is None and taker.asked == ["weight"]
        bound = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]
        assert error_of(micro.grad, scale * of_x) < bound
        assert error_of(total, sums) < (1e-6 if dtype == torch.float32 else bound)


@pytest.mark.parametrize("scale", [1.0, 2.0**16])
def test_fp16_gradients_lose_nothing_of_32768_small_probabilities(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cross_entropy, products):  # products in fp16, as a GPU has them
        monkeypatch.setattr(module, "is_slow_half", lambda _: False)
    x, weight, labels = drawn(512, 32_768, 16, torch.float16, spread=0.2)
    probabilities_tv = (x[0].detach().float() @ weight.detach().float().T).softmax(dim=-1)
    probabilities_tv[torch.arange(512), labels[0]] -= 1
    exact_tv, wide_x, wide_weight = probabilities_tv / 512, x[0].detach().float(), weight.detach().float()
    of_x, of_weight = exact_tv @ wide_weight, exact_tv.T @ wide_x
    elsewhere = torch.ones(32_768, dtype=torch.bool).index_fill(0, labels[0], False)  # rows that are no one's label

    total = torch.zeros(32_768, 16)
    loss = masked_mean_cross_entropy(
        x, weight, labels, torch.ones(1, 512), 32_768, alone(), accumulation=Sums(scale, total)
    )
    (loss * scale).backward()
    assert error_of(total, scale * of_weight.double()) < 3e-4  # fp16 ends 4.9e-4 below 1
    assert error_of(total[elsewhere], scale * of_weight[elsewhere].double()) < 3e-4
    assert error_of(x.grad, scale * of_x.double()) < 3e-4
    # As it was: a mean's gradient in numbers whose smallest is 6e-8, before any loss scale.
    unscaled_tv = exact_tv.half().float()
    assert error_of(unscaled_tv @ wide_weight, of_x.double()) > 1e-2
    assert error_of((unscaled_tv.T @ wide_x)[elsewhere], of_weight[elsewhere].double()) > 5e-2


@pytest.mark.parametrize(("of_label", "lift"), [(1 / 2048, 2.0**16), (32.0, 1.0), (1e6, 2.0**-14), (48.0, 1.0)])
def test_labels_are_lifted_to_where_fp16_is_finest(of_label: float, lift: float) -> None:
    assert lift_of(of_label) == lift
    assert 32 <= of_label * lift < 64


def test_fp16_that_is_added_up_in_fp16_has_the_loss_scale_from_the_start() -> None:
    x, weight, labels = drawn(64, 4096, 32, torch.float16, spread=0.02)
    _, of_x, of_weight = exact_gradients(x, weight, labels, torch.ones(1, 64))
    loss = masked_mean_cross_entropy(x, weight, labels, torch.ones(1, 64), 4096, alone(), accumulation=Sums(2.0**17))
    (loss * 2.0**17).backward()  # a scale that is no fp16 number
    assert error_of(x.grad, 2.0**17 * of_x) < 1e-3
    assert error_of(weight.grad, 2.0**17 * of_weight) < 1e-3


def test_a_backward_pass_with_another_scale_than_was_said_gives_no_number_and_a_second_one_is_refused() -> None:
    x, weight, labels = drawn(4, 16, 8, torch.float32)
    taker = Sums(2.0, torch.zeros(16, 8))
    loss = masked_mean_cross_entropy(x, weight, labels, torch.ones(1, 4), 16, alone(), accumulation=taker)
    loss.backward(retain_graph=True)
    assert x.grad is not None and x.grad.isnan().all()
    with pytest.raises(RuntimeError, match="one backward pass"):
        loss.backward()


def test_nothing_is_added_where_no_gradient_is_wanted() -> None:
    x, weight, labels = drawn(4, 16, 8, torch.float32)
    taker = Sums(1.0, torch.zeros(16, 8))
    with torch.no_grad():
        masked_mean_cross_entropy(x, weight, labels, torch.ones(1, 4), 16, alone(), accumulation=taker)
    assert taker.total_vh is not None and not taker.total_vh.any() and not taker.asked


def test_what_is_no_number_reaches_the_engines_sum_and_the_loss() -> None:
    x, weight, labels = drawn(4, 16, 8, torch.float32)
    x.data[0, 2, 3] = torch.nan
    taker = Sums(1.0, torch.zeros(16, 8))
    loss = masked_mean_cross_entropy(x, weight, labels, torch.ones(1, 4), 16, alone(), accumulation=taker)
    assert loss.isnan() and taker.total_vh is not None and taker.total_vh.isnan().any()


class Largest(TorchDispatchMode):
    """The most numbers of a tensor that an operation made, and not for the first argument `given`."""

    def __init__(self, *given: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = {one.untyped_storage().data_ptr() for one in given}
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in self._given:
            self.numbers = max(self.numbers, made.untyped_storage().nbytes() // made.element_size())
        return made


@pytest.mark.usefixtures("multiplies_bf16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_an_engines_sum_no_tensor_is_as_large_as_the_weight(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(activations.LEAST_TOKENS, "cpu", 8)
    monkeypatch.setitem(activations.LEAST_LOGITS, "cpu", 1)
    monkeypatch.setattr(products, "_BLOCK_NUMBERS", 1 << 12)
    x, weight, labels = drawn(128, 512, 64, dtype)
    total = torch.zeros(512, 64)
    with Largest(x, weight, total) as largest:
        loss = masked_mean_cross_entropy(
            x, weight, labels, torch.ones(1, 128), 512, alone(), accumulation=Sums(1.0, total)
        )
        loss.backward()
    assert total.any() and largest.numbers <= max(128 * 64, 15 * 512)
