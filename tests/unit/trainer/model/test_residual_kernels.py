"""A block's residual stream by kernels that draw dropout's masks where they add, beside torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.native_libraries import built_library
from tests.unit.trainer.model.test_model_parts import SMALL, alone
from trainer.kernels.choice import Operations
from trainer.kernels.cpp import CppResiduals
from trainer.kernels.residual import ResidualKernels
from trainer.model.block import TransformerBlock
from trainer.model.dropout import DropoutClock
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import parse, to_arguments


def losses_and_weights(kernels: ResidualKernels | None, steps: int, **changes: Any) -> tuple[list[float], list[Tensor]]:
    """Of one block that learns to say something else than it is given."""
    options = parse(to_arguments({**SMALL, "attention_dropout": 0.0, **changes}), 1)
    parallel = replace(alone(), operations=Operations(residuals=kernels))
    clock = DropoutClock(seed=1)
    block = TransformerBlock(ModelShape.of(options, Vocabulary.of(64, options)), 0, parallel, clock)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    x, wanted = torch.randn(2, 2, 32, 64, generator=torch.Generator().manual_seed(1)).unbind()
    losses = []
    for step in range(steps):
        with clock.at(2 * step):
            loss = (block(x) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [one.detach() for one in block.parameters()]


def test_a_block_learns_the_same_with_kernels_and_without() -> None:
    kernels = CppResiduals(built_library("operations"))
    ours, our_weights = losses_and_weights(kernels, 50, hidden_dropout=0.2)
    losses, weights = losses_and_weights(None, 50, hidden_dropout=0.2)
    assert torch.allclose(torch.tensor(ours), torch.tensor(losses), rtol=1e-5)
    for one, by_torch in zip(our_weights, weights, strict=True):
        assert torch.allclose(one, by_torch, atol=1e-5)
    assert losses[-1] < losses[0]


def test_the_bias_is_added_once_with_kernels_where_nothing_is_dropped() -> None:
    kernels = CppResiduals(built_library("operations"))
    ours, losses = (losses_and_weights(one, 5, hidden_dropout=0.0)[0] for one in (kernels, None))
    assert torch.allclose(torch.tensor(ours), torch.tensor(losses), rtol=1e-6)
