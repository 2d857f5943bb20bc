"""A block's sum with the attention's output and the norm of it, in one pass of kernels: as apart, to the last bit or
to one rounding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.native_libraries import built_library
from tests.unit.trainer.model.test_model_parts import SMALL, alone
from trainer.kernels.choice import Operations
from trainer.kernels.cpp import CppNorms
from trainer.model.block import TransformerBlock
from trainer.model.dropout import DropoutClock
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import parse, to_arguments


class _Counted(CppNorms):
    """Record which of them were called."""

    def __init__(self) -> None:
        super().__init__(built_library("operations"))
        self.sums = self.norms = 0

    def add_forward(self, *arguments: Any) -> Any:
        self.sums += 1
        return super().add_forward(*arguments)

    def forward(self, *arguments: Any) -> Any:
        self.norms += 1
        return super().forward(*arguments)


def block_of(kernels: CppNorms | None, **changes: Any) -> TransformerBlock:
    without_dropout = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    options = parse(to_arguments({**SMALL, **without_dropout, **changes}), 1)
    parallel = replace(alone(), operations=Operations(norms=kernels))
    return TransformerBlock(ModelShape.of(options, Vocabulary.of(64, options)), 0, parallel, DropoutClock(seed=1))


def passed(block: TransformerBlock, dtype: torch.dtype) -> list[Tensor]:
    """Return the output, and the gradients of the input and of all weights."""
    generator = torch.Generator().manual_seed(1)
    x, gradient = (torch.randn(2, 32, 64, generator=generator).to(dtype) for _ in range(2))
    x.requires_grad_()
    with block.clock.at(0):
        out = block(x)
    return [out.detach(), *torch.autograd.grad(out, [x, *block.parameters()], gradient)]


@pytest.mark.parametrize("changes", [{}, {"normalization": "RMSNorm", "swiglu": True}, {"bf16": True}], ids=str)
def test_a_block_gives_what_sum_and_norm_apart_give(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward to the last bit; backward the sum's gradient is rounded once instead of twice."""
    dtype = torch.bfloat16 if changes.get("bf16") else torch.float32
    kernels = _Counted()
    block = block_of(kernels, **changes)
    ours = passed(block, dtype)
    assert (kernels.sums, kernels.norms) == (1, 1)
    norm = block.post_attention_layernorm
    monkeypatch.setattr(norm, "of_sum", lambda x, residual: (residual + x, norm(residual + x)))
    apart = passed(block, dtype)
    assert (kernels.sums, kernels.norms) == (1, 3)
    assert torch.equal(ours[0], apart[0])
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for one, other in zip(ours[1:], apart[1:], strict=True):
        assert (one - other).abs().max() <= tolerance * other.abs().max()


def test_a_block_learns_as_torchs_does() -> None:
    ours, theirs = (passed(block_of(one), torch.float32) for one in (_Counted(), None))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes", [{"hidden_dropout": 0.1}, {"apply_residual_connection_post_layernorm": True}], ids=str
)
def test_what_lies_between_sum_and_norm_or_goes_on_from_the_norm_keeps_them_apart(changes: dict[str, Any]) -> None:
    kernels = _Counted()
    passed(block_of(kernels, **changes), torch.float32)
    assert kernels.sums == 0


def test_a_sum_of_two_dtypes_is_torchs() -> None:
    from trainer.kernels.normalization import added_and_normalized

    kernels, weight = _Counted(), torch.ones(8)
    x, residual = torch.randn(3, 8), torch.randn(3, 8).bfloat16()
    total, normed = added_and_normalized(x, residual, weight, None, 1e-5, False, kernels)
    assert torch.equal(total, x + residual) and kernels.sums == 0
    assert torch.allclose(normed, torch.nn.functional.layer_norm(total, (8,), weight), atol=1e-6)
