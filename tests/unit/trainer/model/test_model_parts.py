"""Pieces of the model that need no ranks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from trainer.kernels.residual import added
from trainer.model.attention import alibi_slopes, attention_with_dropout, key_features, masks_notices, query_features
from trainer.model.dropout import DropoutClock, dropped_at
from trainer.model.embedding import OutputLayer
from trainer.model.pipeline import engine_item
from trainer.parallel import products
from trainer.parallel.initialization import initial_weight
from trainer.parallel.process_groups import Parallel
from trainer.recipe.activations import alibi_feature_count
from trainer.recipe.layout import Layout
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import parse, to_arguments

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "seq_length": 32,
    "micro_batch_size": 2,
    "lr": 1e-3,
    "train_iters": 10,
    "vocab_size": 64,
}


def alone() -> Parallel:
    """Return the only rank, without any process group."""
    groups: dict[str, Any] = dict.fromkeys(("tensor_group", "pipeline_group", "data_group", "topology"))
    return Parallel(rank=0, local_rank=0, layout=Layout(1, 1, 1, 1), **groups, device=CPU)


def test_alibi_slopes_are_the_papers() -> None:
    assert alibi_slopes(8) == [2.0**-power for power in range(1, 9)]
    slopes = alibi_slopes(112)
    assert len(slopes) == 112
    assert slopes[0] == pytest.approx(0.917004, abs=1e-6)
    assert slopes[64] == pytest.approx(0.957603, abs=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-5)])
def test_alibi_features_multiply_to_slope_times_position(dtype: torch.dtype, tolerance: float) -> None:
    slopes, head, length = torch.tensor(alibi_slopes(112), dtype=torch.float64), 128, 2048
    query, key = query_features(slopes, head, dtype).double(), key_features(length, head, dtype).double()
    bias_ns = query @ key.T / math.sqrt(head)
    wanted_ns = slopes[:, None] * torch.arange(length, dtype=torch.float64)
    assert torch.allclose(bias_ns, wanted_ns, rtol=tolerance, atol=0)


@pytest.mark.parametrize("head", [8, 32, 64, 80, 128])
def test_heads_with_features_stay_aligned(head: int) -> None:
    assert (head + alibi_feature_count(head)) % 8 == 0
    assert alibi_feature_count(head) >= 4


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("ranks", [2, 4])
def test_slices_of_a_weight_are_slices_of_the_whole(dim: int, ranks: int) -> None:
    shape = (24, 100_000)  # more than one block of rows
    whole = initial_weight("a", shape, 0.02, seed=1)
    share = shape[dim] // ranks
    parts = [initial_weight("a", shape, 0.02, 1, dim, rank * share, share) for rank in range(ranks)]
    assert torch.equal(torch.cat(parts, dim), whole)
    assert whole.std().item() == pytest.approx(0.02, rel=1e-2)
    assert not torch.equal(whole, initial_weight("b", shape, 0.02, 1))
    assert not torch.equal(whole, initial_weight("a", shape, 0.02, 2))


def test_an_untied_output_layer_begins_with_numbers_of_its_own() -> None:
    options = parse(to_arguments({**SMALL, "untie_embeddings_and_output_weights": True}), 1)
    shape = ModelShape.of(options, Vocabulary.of(64, options))
    rows = initial_weight("output_layer.weight", (shape.vocabulary, 64), shape.init_std, shape.seed)
    embedding = initial_weight("word_embeddings.weight", (shape.vocabulary, 64), shape.init_std, shape.seed)
    weight = OutputLayer(shape, alone()).weight
    assert torch.equal(weight[:64], rows[:64]) and not torch.equal(weight[:64], embedding[:64])


@pytest.mark.parametrize("columns", [7, 64, 300_000])  # fewer than torch draws at once, more, several blocks of rows
def test_tokens_begin_alike_however_many_rows_pad_them(columns: int) -> None:
    tokens = initial_weight("a", (11, columns), 0.02, seed=1)
    for rows in (12, 16, 24):
        padded = initial_weight("a", (rows, columns), 0.02, seed=1, drawn_rows=11)
        assert torch.equal(padded[:11], tokens) and not padded[11:].any()
        halves = [initial_weight("a", (rows, columns), 0.02, 1, 0, first, rows // 2, 11) for first in (0, rows // 2)]
        assert torch.equal(torch.cat(halves), padded)


def test_labels_are_the_next_tokens_and_the_mask_hides_ends_of_documents() -> None:
    samples = torch.tensor([[5, 0, 7, 8]], dtype=torch.int32)
    tokens, (labels, mask) = engine_item(samples)
    assert isinstance(tokens, torch.Tensor)
    assert tokens.tolist() == [[5, 0, 7]] and labels.tolist() == [[0, 7, 8]] and mask.tolist() == [[1, 1, 1]]
    assert tokens.dtype == labels.dtype == torch.int64
    assert engine_item(samples, end_of_document=0)[1][1].tolist() == [[1, 0, 1]]


def test_the_token_after_a_documents_end_begins_the_next_one() -> None:
    samples = torch.tensor([[5, 0, 7, 0, 0, 3, 0]])
    (tokens, starts), (_, mask) = engine_item(samples, end_of_document=0, masks_loss=False, with_starts=True)
    assert (tokens[0].tolist(), starts[0].tolist()) == ([5, 0, 7, 0, 0, 3], [0, 0, 2, 2, 4, 5])
    assert mask.min() == 1
    with_place = engine_item(samples, end_of_document=0, first_sample=8, with_starts=True)[0]
    assert [one.tolist() for one in with_place[1:]] == [[[0, 0, 2, 2, 4, 5]], [8]]


def test_a_micro_batch_says_where_in_the_training_it_lies_when_told() -> None:
    samples = torch.tensor([[5, 0, 7, 8]])
    (tokens, first_sample), _ = engine_item(samples, first_sample=96)
    assert tokens.tolist() == [[5, 0, 7]] and first_sample.tolist() == [96]
    assert first_sample.dtype == torch.int64


def dropout(
    x_b: torch.Tensor, probability: float, training: bool, clock: DropoutClock, layer: int, spot: str
) -> torch.Tensor:
    return added(x_b, None, None, dropped_at(spot, x_b, probability, training, clock, layer), None)


def test_dropout_masks_follow_from_where_they_are_drawn_not_when() -> None:
    clock, x = DropoutClock(seed=1), torch.ones(2, 1000)
    with clock.at(64):
        first = dropout(x, 0.5, True, clock, layer=3, spot="mlp output")
        elsewhere = dropout(x, 0.5, True, clock, layer=4, spot="mlp output")
        torch.rand(17)
        again = dropout(x, 0.5, True, clock, layer=3, spot="mlp output")
    with clock.at(72):
        later = dropout(x, 0.5, True, clock, layer=3, spot="mlp output")
    assert torch.equal(first, again)
    assert not torch.equal(first, elsewhere) and not torch.equal(first, later)
    assert clock.sample == 0
    assert torch.equal(dropout(x, 0.5, False, clock, 3, "mlp output"), x)


def test_a_sample_has_its_mask_whatever_micro_batch_it_comes_in() -> None:
    clock, four = DropoutClock(seed=1), torch.ones(4, 30, 7)
    with clock.at(64):
        together = dropout(four, 0.5, True, clock, layer=3, spot="mlp output")
    with clock.at(66):
        apart = dropout(four[2:], 0.5, True, clock, layer=3, spot="mlp output")
    assert torch.equal(together[2:], apart)
    assert len({tuple(one.flatten().tolist()) for one in together}) == 4


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9, 1e-6, 0.999999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_keeps_the_expectation_and_its_gradient_has_the_mask(probability: float, dtype: torch.dtype) -> None:
    x = torch.ones(2, 300, 501, dtype=dtype, requires_grad=True)  # a size that no four values fill
    kept = dropout(x, probability, True, DropoutClock(seed=1), layer=0, spot="mlp output")
    kept.backward(torch.ones_like(kept))
    share = (kept != 0).double().mean().item()
    deviation = math.sqrt(probability * (1 - probability) / x.numel())
    assert share == pytest.approx(1 - probability, abs=5 * deviation + 2**-16)
    assert kept[kept != 0].unique().numel() <= 1
    assert probability > 0.99 or kept.double().mean().item() == pytest.approx(1, rel=1e-2)
    assert x.grad is not None and torch.equal(x.grad, kept.detach())


def test_attention_drops_the_weights_that_its_masks_name() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    mask = torch.rand(2, 3, 5, 5) > 0.25
    theirs, _ = torch.ops.aten._scaled_dot_product_attention_math(
        q, k, v, dropout_p=0.25, is_causal=True, dropout_mask=mask, scale=0.3
    )
    assert torch.allclose(attention_with_dropout(q, k, v, 0.3, mask, 0.25), theirs, atol=1e-6)


def test_only_dropout_by_a_gpus_kernel_is_said_to_follow_the_layout() -> None:
    assert not masks_notices(0.1, CPU) and not masks_notices(0.0, torch.device("cuda"))
    (notice,) = masks_notices(0.1, torch.device("cuda"))
    assert notice.startswith("--attention-dropout 0.1 on a GPU") and "tensor-parallel" in notice


def test_a_cpu_without_bf16_multiplies_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "cpu_multiplies_bf16", lambda: False)
    x, weight = torch.randn(4, 8).bfloat16(), torch.randn(6, 8).bfloat16()
    assert products.is_slow_half(x)
    got = products.linear(x, weight)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, (x.float() @ weight.float().T).bfloat16())


def test_blocks_are_dealt_to_stages_as_planned() -> None:
    from deepspeed.runtime.utils import partition_balanced

    from trainer.model.block import TransformerBlock
    from trainer.model.embedding import Embedding
    from trainer.model.pipeline import layer_specs
    from trainer.recipe.layout import BY_BLOCK, BY_BLOCK_AND_EMBEDDING, blocks_per_stage

    for layers, stages, method in [(70, 12, BY_BLOCK_AND_EMBEDDING), (40, 4, BY_BLOCK), (4, 2, BY_BLOCK)]:
        counted = {TransformerBlock, Embedding} if method == BY_BLOCK_AND_EMBEDDING else {TransformerBlock}
        options = parse(to_arguments({**SMALL, "num_layers": layers}))
        shape = ModelShape.of(options, Vocabulary.unpadded(64))
        kinds = [getattr(spec, "typename", None) for spec in layer_specs(shape, alone(), DropoutClock(1))]
        bounds = partition_balanced([int(kind in counted) for kind in kinds], stages)
        blocks = [kinds[start:stop].count(TransformerBlock) for start, stop in itertools.pairwise(bounds)]
        assert blocks == blocks_per_stage(layers, stages, method)
        if layers == 70:
            assert blocks == [5, *[6] * 10, 5]


def test_each_mask_has_a_seed_of_its_own_whichever_place_its_sample_has_in_a_micro_batch() -> None:
    clock = DropoutClock(1234)
    places = list(itertools.product(range(3), range(2), ("attention", "mlp"), range(4)))
    assert len({clock.seed_of(*place) for place in places}) == len(places)
    with clock.at(2):
        first = clock.seed_of(0, 1, "mlp", 3)
    assert first == clock.seed_of(2, 1, "mlp", 3)
