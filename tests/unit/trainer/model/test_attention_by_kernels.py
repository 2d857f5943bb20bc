"""The model's attention by the C++ kernels beside torch's, with all that can lie between product and softmax."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.native_libraries import built_library
from tests.unit.trainer.model.test_model_parts import SMALL, alone
from trainer.kernels.choice import BY_TORCH, Operations
from trainer.kernels.cpp import CppAttention
from trainer.model.attention import SelfAttention
from trainer.model.dropout import DropoutClock
from trainer.model.weights import LayerWeights
from trainer.parallel.process_groups import Parallel
from trainer.recipe.layout import Layout
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import parse, to_arguments
from trainer.recipe.parameters import block_parameters

ROTARY = {"position_embedding_type": "rope", "rotary_percent": 0.5}
GROUPS = {"group_query_attention": True, "num_query_groups": 2}
MODELS: dict[str, dict[str, Any]] = {
    "ALiBi": {"position_embedding_type": "alibi"},
    "learned positions": {},
    "groups": GROUPS,
    "rotary": ROTARY,
    "rotary, groups and norms": {**ROTARY, **GROUPS, "qk_layernorm": True},
}


@pytest.fixture(scope="module")
def by_cpp() -> Operations:
    return Operations(attention=CppAttention(built_library("operations")))


def attention_of(model: dict[str, Any], operations: Operations, tensor: tuple[int, int] = (0, 1)) -> SelfAttention:
    """Return the first block's attention. tensor: the rank, and the number of ranks."""
    options = parse(to_arguments({**SMALL, **model, "attention_dropout": 0.0}), world_size=1)
    shape = ModelShape.of(options, Vocabulary.unpadded(options.vocab_size))
    rank, size = tensor
    parallel: Parallel = dataclasses.replace(alone(), rank=rank, layout=Layout(size, size, 1, 1), operations=operations)
    clock, weights = DropoutClock(1), LayerWeights(block_parameters(shape, 0), shape, parallel)
    return SelfAttention(shape, 0, parallel, clock, weights)


def results(attention: SelfAttention, x_bsh: Tensor) -> list[Tensor]:
    """Return the output, and the gradients of the input and of every weight."""
    x_bsh = x_bsh.clone().requires_grad_()
    out = attention(x_bsh)
    out.backward(torch.ones_like(out) * torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype))
    return [out.detach(), *(one.grad for one in (x_bsh, *attention.parameters()) if one.grad is not None)]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_it_gives_torchs_numbers_and_gradients_up_to_rounding(by_cpp: Operations, model: dict[str, Any]) -> None:
    x_bsh = torch.randn(2, 33, SMALL["hidden_size"], generator=torch.Generator().manual_seed(0))
    exact = results(attention_of(model, BY_TORCH).double(), x_bsh.double())
    for found, wanted in zip(results(attention_of(model, by_cpp), x_bsh), exact, strict=True):
        assert torch.allclose(found.double(), wanted, rtol=0, atol=1e-6 * float(wanted.abs().max()))


@pytest.mark.parametrize("model", [MODELS["ALiBi"], {**MODELS["ALiBi"], **GROUPS}])
def test_a_tensor_ranks_heads_have_the_slopes_that_they_have_in_the_whole_model(
    by_cpp: Operations, model: dict[str, Any]
) -> None:
    whole = attention_of(model, by_cpp)
    qkv = torch.randn(2, 33, whole.query_key_value.weight.shape[0], generator=torch.Generator().manual_seed(0))
    parts = [attention_of(model, by_cpp, (rank, 2))._core(part) for rank, part in enumerate(qkv.chunk(2, dim=-1))]
    assert torch.equal(torch.cat(parts, dim=-1), whole._core(qkv))


def test_attention_that_drops_weights_stays_torchs(by_cpp: Operations) -> None:
    attention = attention_of({}, by_cpp)
    attention.shape = dataclasses.replace(attention.shape, attention_dropout=0.5)
    qkv = torch.randn(1, 9, attention.query_key_value.weight.shape[0])
    assert not torch.equal(attention._core(qkv), attention.eval()._core(qkv))
