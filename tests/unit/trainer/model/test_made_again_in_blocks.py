"""A block's norms and activation, kept for the backward pass or made again: the same bits."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.native_libraries import built_library
from tests.unit.trainer.model.test_model_parts import SMALL, alone
from trainer.core.dtypes import DTYPES
from trainer.kernels.attention import CPP
from trainer.kernels.choice import Source, every_kernel
from trainer.model import block as block_module
from trainer.model.block import TransformerBlock
from trainer.model.dropout import DropoutClock
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import parse, to_arguments

_GROUPS = {"group_query_attention": True, "num_query_groups": 2}
SHAPES: dict[str, dict[str, Any]] = {
    "learned positions": {},
    "bf16, ALiBi": {"position_embedding_type": "alibi", "bf16": True},
    "Llama": {**_GROUPS, "normalization": "RMSNorm", "position_embedding_type": "rope", "swiglu": True},
    "residual after the norm": {"apply_residual_connection_post_layernorm": True},
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_block_of_kernels_has_the_same_gradients_whether_it_keeps_or_makes_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _gradients(SHAPES[name])
    monkeypatch.setattr(block_module, "made_again", lambda *_: contextlib.nullcontext())
    assert all(torch.equal(one, kept) for one, kept in zip(made, _gradients(SHAPES[name]), strict=True))


def _gradients(changes: dict[str, Any]) -> list[Tensor]:
    """Return the gradients of a block's input and weights."""
    dropping = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    options = parse(to_arguments({**SMALL, **dropping, **changes}), 1)
    shape = ModelShape.of(options, Vocabulary.of(64, options))
    parallel = replace(alone(), operations=every_kernel(Source(CPP, built_library("operations"), "built")))
    block = TransformerBlock(shape, 0, parallel, DropoutClock(seed=1))
    drawn = torch.randn(2, 32, shape.hidden, generator=torch.Generator().manual_seed(1))
    x = drawn.to(DTYPES[shape.precision]).requires_grad_()
    block(x).float().square().sum().backward()
    found = [x.grad, *(one.grad for one in block.parameters())]
    assert all(one is not None for one in found)
    return [one for one in found if one is not None]
