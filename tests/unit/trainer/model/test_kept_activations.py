"""What a block really keeps for its backward pass, beside what plans reckon with."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.trainer.model.test_model_parts import SMALL, alone
from trainer.kernels.dtypes import DTYPES
from trainer.model.block import TransformerBlock
from trainer.model.dropout import DropoutClock
from trainer.parallel import products
from trainer.recipe.activations import MicroBatch
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import parse, to_arguments
from trainer.recipe.vocabulary import Vocabulary

_SHARED = {"group_query_attention": True, "num_query_groups": 2}
SHAPES: dict[str, dict[str, Any]] = {
    "learned positions": {},
    "ALiBi": {"position_embedding_type": "alibi"},
    "rotary": {"position_embedding_type": "rope"},
    "groups": _SHARED,
    "groups, rotary": {**_SHARED, "position_embedding_type": "rope"},
    "groups, ALiBi": {**_SHARED, "position_embedding_type": "alibi"},
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


@pytest.mark.parametrize(("precision", "wide"), [("fp32", False), ("bf16", False), ("bf16", True)])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("recompute", ["none", "attention"])
def test_a_block_keeps_as_many_bytes_as_plans_say(
    name: str, precision: str, wide: bool, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "cpu_multiplies_bf16", lambda: not wide)
    changes = {**_NONE_DROPPED, **SHAPES[name], "bf16": precision == "bf16"}
    options = parse(to_arguments({**SMALL, "ffn_hidden_size": 192, **changes}), world_size=1)
    shape = ModelShape.of(options, Vocabulary.of(options.vocab_size, options))
    planned = MicroBatch(shape, 2, options.seq_length, recompute=recompute, on_cpu=True, wide=wide)
    assert planned.block_bytes() == _kept_bytes(shape, planned)


def _kept_bytes(shape: ModelShape, planned: MicroBatch) -> int:
    """Of everything that autograd saves in a block's forward pass, but the weights: each storage once."""
    block = TransformerBlock(shape, 0, alone(), DropoutClock(1), recompute_attention=planned.recompute == "attention")
    weights = {one.untyped_storage().data_ptr() for one in block.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def note(saved: torch.Tensor) -> torch.Tensor:
        kept[saved.untyped_storage().data_ptr()] = saved.untyped_storage()  # held, so that no other takes its place
        return saved

    x_bsh = torch.randn(planned.samples, planned.length, shape.hidden, dtype=DTYPES[shape.precision])
    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        block.train()(x_bsh.requires_grad_())
    return sum(storage.nbytes() for place, storage in kept.items() if place not in weights)
