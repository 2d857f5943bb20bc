"""The bytes that a block keeps for its backward pass, compared with the plan's estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.emulator.runner import EmulatedRunner, needs_gxx
from tests.native_libraries import built_library
from tests.unit.trainer.model.test_model_parts import SMALL, alone
from trainer.core.dtypes import DTYPES
from trainer.kernels.attention import SoftmaxAttention
from trainer.kernels.choice import BY_TORCH, Operations, choose
from trainer.kernels.cuda.softmax import CudaSoftmax
from trainer.model.block import TransformerBlock
from trainer.model.dropout import DropoutClock
from trainer.parallel import products
from trainer.recipe.activations import MicroBatch, attends_by_softmax, kernel_families
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import parse, to_arguments

_SHARED = {"group_query_attention": True, "num_query_groups": 2}
SHAPES: dict[str, dict[str, Any]] = {
    "learned positions": {},
    "ALiBi": {"position_embedding_type": "alibi"},
    "rotary": {"position_embedding_type": "rope"},
    "groups": _SHARED,
    "groups of wide heads, rotary": {**_SHARED, "kv_channels": 48, "position_embedding_type": "rope"},
    "groups, rotary": {**_SHARED, "position_embedding_type": "rope"},
    "groups, ALiBi": {**_SHARED, "position_embedding_type": "alibi"},
    "window": {"window_size": "3,0"},
    "documents, rotary": {**_SHARED, "reset_attention_mask": True, "position_embedding_type": "rope"},
    "norms of heads": {"qk_layernorm": True},
    "norms of heads, ALiBi": {"qk_layernorm": True, "position_embedding_type": "alibi"},
    "norms of heads, groups, rotary": {**_SHARED, "qk_layernorm": True, "position_embedding_type": "rope"},
    "RMSNorm": {"normalization": "RMSNorm"},
    "RMSNorm of heads": {"normalization": "RMSNorm", "qk_layernorm": True},
    "Llama": {**_SHARED, "normalization": "RMSNorm", "position_embedding_type": "rope", "swiglu": True},
    "reglu": {"glu_activation": "reglu"},
    "liglu": {"glu_activation": "liglu"},
    "hidden dropout": {"hidden_dropout": 0.1},
    "attention dropout": {"attention_dropout": 0.1},
    "attention dropout, ALiBi": {"attention_dropout": 0.1, "position_embedding_type": "alibi"},
    "attention dropout, norms, groups": {**_SHARED, "attention_dropout": 0.1, "qk_layernorm": True},
    "residual after the norm": {"apply_residual_connection_post_layernorm": True},
}
_NONE_DROPPED = {"attention_dropout": 0.0, "hidden_dropout": 0.0}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("recompute", ["none", "attention"])
def test_a_block_keeps_as_many_bytes_as_plans_say(
    name: str, precision: str, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "cpu_multiplies_bf16", lambda: True)
    changes = {**_NONE_DROPPED, **SHAPES[name], "bf16": precision == "bf16"}
    options = parse(to_arguments({**SMALL, "ffn_hidden_size": 192, **changes}), world_size=1)
    shape = ModelShape.of(options, Vocabulary.of(options.vocab_size, options))
    planned = MicroBatch(shape, 2, options.seq_length, recompute=recompute, on_cpu=True)
    masks = planned.mask_bytes()
    of_masks = 0 if recompute == "attention" else masks[1] or masks[0]
    assert planned.block_bytes() + of_masks == _kept_bytes(shape, planned)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_block_by_the_cpus_kernels_keeps_as_many_bytes_as_plans_say(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "cpu_multiplies_bf16", lambda: True)
    changes = {**_NONE_DROPPED, **SHAPES[name], "bf16": precision == "bf16"}
    options = parse(to_arguments({**SMALL, "ffn_hidden_size": 192, **changes}), world_size=1)
    shape = ModelShape.of(options, Vocabulary.of(options.vocab_size, options))
    planned = MicroBatch(shape, 2, options.seq_length, on_cpu=True, kernels=kernel_families(options))
    masks = planned.mask_bytes()
    library = built_library("operations")
    monkeypatch.setattr("trainer.kernels.choice.operations", lambda: library)
    kept = _kept_bytes(shape, planned, choose(options, torch.device("cpu")))
    by_kernels = shape.alibi and not shape.attention_dropout
    slopes = 4 * shape.heads if by_kernels else 0  # all blocks share them
    assert planned.block_bytes() + (masks[1] or masks[0]) + slopes == kept


@needs_gxx
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", ["none", "attention"])
def test_attention_by_the_softmax_kernels_keeps_its_weights_as_plans_say(
    precision: str, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "cpu_multiplies_bf16", lambda: True)
    alibi = {**_NONE_DROPPED, "position_embedding_type": "alibi", "bf16": precision == "bf16"}
    options = parse(to_arguments({**SMALL, **alibi}), world_size=1)
    shape = ModelShape.of(options, Vocabulary.of(options.vocab_size, options))
    planned = MicroBatch(shape, 2, options.seq_length, recompute=recompute, on_cpu=True, keeps_weights=True)
    by_softmax = Operations(core_attention=SoftmaxAttention(CudaSoftmax(EmulatedRunner())))
    assert planned.block_bytes() == _kept_bytes(shape, planned, by_softmax)


@pytest.mark.parametrize(
    ("changes", "before_ampere", "is_so"),
    [
        ({"bf16": True}, True, True),
        ({"bf16": True}, False, False),
        ({}, False, True),
        ({"seq_length": 4096}, True, True),
        ({"seq_length": 8192}, True, False),
        ({"position_embedding_type": "rope"}, True, False),
        ({"attention_dropout": 0.1}, True, False),
        ({"no_masked_softmax_fusion": True}, True, False),
        ({"kernels": "torch"}, True, False),
        ({"bf16": True, "attention": "softmax"}, False, True),
    ],
    ids=str,
)
def test_plans_know_where_attention_is_the_softmax_kernels(
    changes: dict[str, Any], before_ampere: bool, is_so: bool
) -> None:
    options = parse(to_arguments({**SMALL, **_NONE_DROPPED, "position_embedding_type": "alibi", **changes}), 1)
    assert attends_by_softmax(options, before_ampere) == is_so


def _kept_bytes(shape: ModelShape, planned: MicroBatch, operations: Operations = BY_TORCH) -> int:
    """Return the bytes that autograd saves in a block's forward pass, without weights, each storage once."""
    parallel = replace(alone(), operations=operations)
    block = TransformerBlock(shape, 0, parallel, DropoutClock(1), recompute_attention=planned.recompute == "attention")
    weights = {one.untyped_storage().data_ptr() for one in block.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def note(saved: torch.Tensor) -> torch.Tensor:
        kept[saved.untyped_storage().data_ptr()] = saved.untyped_storage()  # held, so that no other takes its place
        return saved

    x_bsh = torch.randn(planned.samples, planned.length, shape.hidden, dtype=DTYPES[shape.precision])
    starts_bs = torch.zeros(planned.samples, planned.length, dtype=torch.long) if shape.splits_documents else None
    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved)
    with hooks, block.clock.at(0, starts_bs):
        block.train()(x_bsh.requires_grad_())
    return sum(storage.nbytes() for place, storage in kept.items() if place not in weights)
