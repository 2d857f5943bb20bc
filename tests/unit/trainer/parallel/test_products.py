"""Products of 16-bit numbers on a CPU that is slow in them, against fp64 and beside torch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trainer.parallel import products
from trainer.parallel.products import linear, matmul

#: (tokens, input, output): single ones, no multiples of anything, blocks and a rest, and more inputs than tokens.
SHAPES = [(1, 1, 1), (3, 5, 7), (513, 33, 65), (1025, 17, 40), (1300, 129, 1), (5, 1300, 3), (2, 530, 600)]
HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def slow_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "cpu_multiplies_bf16", lambda: False)


def drawn(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).abs().max())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_layer_and_its_gradients_are_as_near_to_fp64_as_torchs(
    dtype: torch.dtype, shape: tuple[int, int, int], has_bias: bool
) -> None:
    tokens, inputs, outputs = shape
    given = [drawn(1, tokens, inputs, dtype=dtype), drawn(outputs, inputs, dtype=dtype)]
    given += [drawn(outputs, dtype=dtype)] if has_bias else []
    upstream = drawn(1, tokens, outputs, dtype=dtype)

    def results(layer: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [one.to(dtype).detach().requires_grad_() for one in given]
        out = layer(*leaves)
        out.backward(upstream.to(dtype))
        return [out.detach(), *(one.grad for one in leaves if one.grad is not None)]

    truth = results(torch.nn.functional.linear, torch.float64)
    torchs = results(torch.nn.functional.linear, dtype)
    for ours, theirs, right in zip(results(linear, dtype), torchs, truth, strict=True):
        assert ours.dtype == dtype and ours.shape == right.shape
        assert error(ours, right) <= 2 * error(theirs, right) + 1e-12


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_of_turned_operands_is_as_near_to_fp64_as_torchs(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    left, right = drawn(k, m, dtype=torch.bfloat16).t(), drawn(n, k, dtype=torch.bfloat16).t()
    truth = left.double() @ right.double()
    assert error(matmul(left, right), truth) <= 2 * error(left @ right, truth) + 1e-12


def test_nothing_wide_is_kept_for_the_backward_pass() -> None:
    x, weight = drawn(4, 600, 32, dtype=torch.bfloat16), drawn(64, 32, dtype=torch.bfloat16)
    kept: set[int] = set()

    def note(saved: Tensor) -> Tensor:
        kept.add(saved.untyped_storage().data_ptr())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        linear(x.requires_grad_(), weight.requires_grad_())
    assert kept == {x.untyped_storage().data_ptr(), weight.untyped_storage().data_ptr()}


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    x, weight = drawn(3, 5, dtype=torch.bfloat16), drawn(7, 5, dtype=torch.bfloat16).requires_grad_()
    linear(x, weight).sum().backward()
    assert x.grad is None and weight.grad is not None


@pytest.mark.parametrize(
    ("flags", "has_bf16"),
    [
        ("flags\t\t: fpu sse4_2 avx avx2 fma", False),
        ("flags\t\t: fpu avx2 avx512f avx512bw avx512_vnni", False),
        ("flags\t\t: fpu avx2 avx512f avx512_bf16", True),
        ("flags\t\t: fpu avx2 amx_bf16 amx_tile", True),
        ("Features\t: fp asimd sve asimddp", False),
        ("Features\t: fp asimd sve i8mm bf16", True),
    ],
)
def test_a_cpu_multiplies_bf16_if_the_kernel_names_its_instructions(flags: str, has_bf16: bool) -> None:
    assert products.has_bf16_flag(f"processor\t: 0\n{flags}\n") == has_bf16


def test_an_older_torch_that_reports_no_instructions_trains_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the slow processor
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    products.cpu_multiplies_bf16.cache_clear()
    x = drawn(3, 5, dtype=torch.bfloat16)
    assert linear(x, drawn(7, 5, dtype=torch.bfloat16)).shape == (3, 7)
