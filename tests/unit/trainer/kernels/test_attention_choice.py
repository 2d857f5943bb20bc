"""The choice of attention's implementation: the table, and the results that a CPU can compute."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from tests.unit.trainer.kernels.conftest import Machine
from tests.unit.trainer.kernels.rounding import assert_no_worse
from trainer.kernels.attention import (
    CPP,
    FLASH,
    SOFTMAX,
    TORCH,
    AttentionFacts,
    CausalAttention,
    FlashAttention,
    SoftmaxAttention,
    attention_choice,
    attention_facts,
    core_attention,
    refuses,
)
from trainer.kernels.choice import Operations
from trainer.kernels.cuda.softmax import CudaSoftmax
from trainer.model.attention import SelfAttention
from trainer.model.dropout import DropoutClock
from trainer.model.weights import LayerWeights
from trainer.parallel.process_groups import Parallel
from trainer.recipe.layout import Layout
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import parse, to_arguments
from trainer.recipe.parameters import block_parameters

V100, A100, H100 = (7, 0), (8, 0), (9, 0)


def facts(capability: tuple[int, int] | None, has: str = "", **changed: object) -> AttentionFacts:
    """BLOOM's heads in bf16, with ALiBi unless said otherwise, where what `has` names is there."""
    there = {f"has_{name}": True for name in has.split()}
    settled = AttentionFacts(capability, torch.bfloat16, head_size=128, sequence=2048, alibi_features=8, **there)
    return replace(settled, **changed)  # type: ignore[arg-type]


TABLE = [
    (facts(None), TORCH),
    (facts(None, "cpp"), CPP),
    (facts(None, "cpp flash softmax", alibi_features=0), CPP),
    (facts(None, "cpp", dropout=True), TORCH),
    (facts(V100), TORCH),
    (facts(V100, "flash softmax"), SOFTMAX),
    (facts(V100, "softmax", dtype=torch.float16), SOFTMAX),
    (facts(V100, "softmax", sequence=8192), TORCH),
    (facts(V100, "softmax", alibi_features=0), TORCH),
    (facts(V100, "softmax", dropout=True), TORCH),
    (facts(A100), TORCH),
    (facts(A100, "softmax"), TORCH),
    (facts(A100, "flash softmax"), FLASH),
    (facts(A100, "flash", dtype=torch.float16), FLASH),
    (facts(A100, "flash", alibi_features=0), TORCH),
    (facts(A100, "flash softmax", dtype=torch.float32), SOFTMAX),
    (facts(A100, "flash", dropout=True), TORCH),
    (facts(H100, "flash softmax"), FLASH),
    (facts(H100, "softmax"), TORCH),
    (facts(H100, "softmax", head_size=256), SOFTMAX),
    (facts(H100, "flash softmax", head_size=256), FLASH),
    (facts(H100, "flash softmax", head_size=320), SOFTMAX),
    (facts(H100, "flash", head_size=84, alibi_features=4), TORCH),
    (facts(H100, "flash softmax", masked=True), TORCH),
    (facts(None, "cpp", masked=True), TORCH),
]


@pytest.mark.parametrize(("given", "by"), TABLE)
def test_the_first_that_can_is_taken(given: AttentionFacts, by: str) -> None:
    chosen, why = attention_choice(given)
    assert chosen == by and why
    assert refuses(by, given) is None


@pytest.mark.parametrize(
    ("asked", "given", "why"),
    [
        (CPP, facts(None), "not built"),
        (CPP, facts(A100, "cpp"), r"C\+\+ is for the CPU"),
        (FLASH, facts(A100), "flash-attn"),
        (FLASH, facts(V100, "flash"), r"\b8\.0.*\b7\.0"),
        (FLASH, facts(A100, "flash", dtype=torch.float32), "torch.float32"),
        (FLASH, facts(A100, "flash", head_size=264), "heads of 264"),
        (FLASH, facts(A100, "flash", masked=True), "a window"),
        (FLASH, facts(None, "flash"), "needs a GPU"),
        (SOFTMAX, facts(A100), "not built"),
        (SOFTMAX, facts(A100, "softmax", dropout=True), "dropout"),
    ],
)
def test_what_is_asked_for_and_cannot_be_is_refused_by_name(asked: str, given: AttentionFacts, why: str) -> None:
    with pytest.raises(ValueError, match=rf"attention by {re.escape(asked)}: .*{why}"):
        attention_choice(given, asked)


def test_more_keys_than_the_softmax_kernels_take_are_refused_before_the_first_step() -> None:
    assert refuses(SOFTMAX, facts(V100, "softmax", sequence=32_768)) is None
    refused = refuses(SOFTMAX, facts(V100, "softmax", sequence=65_536))
    assert refused and "65536" in refused and "32768" in refused


def test_facts_are_those_of_the_options_and_the_device() -> None:
    given: dict[str, Any] = {
        "num_layers": 1,
        "hidden_size": 640,
        "num_attention_heads": 5,
        "seq_length": 16,
        "bf16": True,
    }
    given |= {"micro_batch_size": 1, "lr": 1e-3, "train_iters": 1, "vocab_size": 64}
    for alibi in (False, True):
        options = parse(to_arguments(given | ({"position_embedding_type": "alibi"} if alibi else {})))
        found = attention_facts(options, torch.device("cpu"), has_cpp=True, has_softmax=False)
        features = 8 if alibi else 0
        assert found == AttentionFacts(
            None,
            torch.bfloat16,
            128,
            16,
            features,
            dropout=options.attention_dropout > 0,
            has_cpp=True,
            has_flash=found.has_flash,
        )


def test_each_choice_is_made_by_name() -> None:
    assert core_attention(TORCH, None) is None
    assert core_attention(CPP, None) is None
    assert isinstance(core_attention(SOFTMAX, None), SoftmaxAttention)


def inputs(dtype: torch.dtype, device: torch.device, d: int = 20, s: int = 37) -> list[Tensor]:
    """Query, key, value, gradient; not contiguous, as the product leaves them."""
    generator = torch.Generator().manual_seed(3)
    made = torch.randn(4, 2, s, 3, d, generator=generator).to(device, dtype)
    return [one.transpose(1, 2) for one in made]


SLOPES = torch.tensor([0.5, 0.25, 0.125])


def found_by(attention: CausalAttention, given: list[Tensor], slopes: Tensor | None) -> list[Tensor]:
    """Return the output, and the gradients of query, key and value."""
    leaves = [one.detach().clone().requires_grad_() for one in given[:3]]
    q, k, v = leaves
    out = attention(q, k, v, slopes, 0.2)
    out.backward(given[3])
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def plain(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, scale: float) -> Tensor:
    """Return the reference, straight from the papers."""
    s = q.shape[2]
    distance = torch.arange(s, device=q.device).view(1, -1) - torch.arange(s, device=q.device).view(-1, 1)
    scores = q @ k.mT * scale
    if slopes is not None:
        scores = scores + slopes.to(q.dtype).view(-1, 1, 1) * distance
    return scores.masked_fill(distance > 0, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("alibi", [False, True])
def test_two_products_around_the_softmax_kernels_err_at_most_twice_as_much_as_torch(
    machine: Machine, alibi: bool, dtype: torch.dtype
) -> None:
    given, slopes = inputs(dtype, machine.device), SLOPES.to(machine.device) if alibi else None
    exact = found_by(plain, [one.double() for one in given], slopes)
    ours = found_by(SoftmaxAttention(CudaSoftmax(machine.runner)), given, slopes)
    for by_kernels, by_torch, true in zip(ours, found_by(SoftmaxAttention(None), given, slopes), exact, strict=True):
        assert_no_worse(by_kernels, by_torch, true)
    for by_kernels, by_torch, true in zip(ours, found_by(plain, given, slopes), exact, strict=True):
        assert_no_worse(by_kernels, by_torch, true)


def test_products_that_fp16_cannot_hold_are_scaled_before_they_are_rounded(machine: Machine) -> None:
    q, k, v, _ = (one.half() for one in inputs(torch.float32, machine.device))
    out = SoftmaxAttention(CudaSoftmax(machine.runner))(q * 80, k * 80, v, None, 1e-4)
    exact = plain((q * 80).double(), (k * 80).double(), v.double(), None, 1e-4)
    assert (q.double() @ k.double().mT * 6400).abs().max() > 65_504
    assert torch.allclose(out.double(), exact, atol=1e-2)


@pytest.mark.parametrize("alibi", [False, True])
def test_flash_attention_is_asked_as_its_documentation_has_it(monkeypatch: pytest.MonkeyPatch, alibi: bool) -> None:
    """A stand-in, as nothing but a GPU runs it: it computes what its documentation says of these arguments."""

    def flash_attn_func(
        q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool, alibi_slopes: Tensor | None
    ) -> Tensor:
        assert causal
        assert alibi_slopes is None or alibi_slopes.dtype == torch.float32
        s = q.shape[1]
        distance = (torch.arange(s).view(-1, 1) - torch.arange(s)).abs()
        scores = torch.einsum("bind,bjnd->bnij", q, k) * softmax_scale
        if alibi_slopes is not None:
            scores = scores - alibi_slopes.view(-1, 1, 1) * distance
        later = torch.ones(s, s, dtype=torch.bool).triu(1)
        return torch.einsum("bnij,bjnd->bind", scores.masked_fill(later, -torch.inf).softmax(-1), v)

    module = ModuleType("flash_attn")
    module.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    given, slopes = inputs(torch.float32, torch.device("cpu")), SLOPES if alibi else None
    for ours, expected in zip(found_by(FlashAttention(), given, slopes), found_by(plain, given, slopes), strict=True):
        assert torch.allclose(ours, expected, rtol=1e-4, atol=1e-5)


def bloom_attention(heads: int, tensor: int, rank: int, core: CausalAttention | None) -> SelfAttention:
    """Of a rank of a layer with ALiBi."""
    given: dict[str, Any] = {"num_layers": 1, "hidden_size": heads * 8, "num_attention_heads": heads, "seq_length": 16}
    given |= {"micro_batch_size": 1, "lr": 1e-3, "train_iters": 1, "vocab_size": 64}
    options = parse(to_arguments(given | {"position_embedding_type": "alibi", "attention_dropout": 0.0}))
    shape = ModelShape.of(options, Vocabulary.unpadded(64))
    groups: dict[str, Any] = dict.fromkeys(("tensor_group", "pipeline_group", "data_group", "topology"))
    layout, operations = Layout(tensor, tensor, 1, 1), Operations(core_attention=core)
    parallel = Parallel(rank, rank, layout, **groups, device=torch.device("cpu"), operations=operations)
    weights = LayerWeights(block_parameters(shape, 0), shape, parallel)
    return SelfAttention(shape, 0, parallel, DropoutClock(shape.seed), weights)


@dataclass
class Slopes:
    """What a layer gives to who computes its attention."""

    given: list[float] = field(default_factory=list)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, slopes_n: Tensor | None, scale: float) -> Tensor:
        assert slopes_n is not None
        assert len(slopes_n) == q.shape[1]
        self.given += slopes_n.tolist()
        return v


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_slopes_are_those_of_all_heads_cut_among_the_ranks(tensor: int) -> None:
    seen = Slopes()
    for rank in range(tensor):
        layer = bloom_attention(112, tensor, rank, seen)
        layer._core(torch.zeros(1, 3, 3 * 112 * 8 // tensor))
    # The bias that transformers builds for BLOOM is slope x position of the key.
    by_transformers = build_alibi_tensor(torch.ones(1, 2), 112, torch.float32)[:, 0, 1]
    assert torch.allclose(torch.tensor(seen.given), by_transformers)


def test_a_layer_is_the_same_by_the_softmax_kernels_as_by_extra_features(machine: Machine) -> None:
    x = torch.randn(2, 16, 40, generator=torch.Generator().manual_seed(1))
    found = []
    for core in (None, SoftmaxAttention(CudaSoftmax(machine.runner))):
        layer = bloom_attention(5, 1, 0, core).to(machine.device)
        leaf = x.to(machine.device).requires_grad_()
        out = layer(leaf)
        out.square().sum().backward()
        found.append((out, leaf.grad, layer.query_key_value.weight.grad))
    for by_features, by_kernels in zip(*found, strict=True):
        assert torch.allclose(by_features, by_kernels, rtol=1e-4, atol=1e-6)
