"""Parameters, operations and bytes, against printed numbers."""

from __future__ import annotations

import pytest

from trainer.recipe.layout import BY_BLOCK_AND_EMBEDDING, blocks_per_stage
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import from_tables
from trainer.recipe.sizes import (
    MODEL_PASSES,
    formula_block_parameters,
    formula_parameters,
    parameters,
    parameters_of_block,
    parameters_of_ranks,
    parameters_outside_embeddings,
    rest_parameters,
    step_flops,
    tflops_per_gpu,
)


def shape_of(vocabulary: int, layers: int, hidden: int, heads: int, **options: object) -> ModelShape:
    sizes = {"num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "seq_length": 2048}
    return ModelShape.of(from_tables({**sizes, **options}), Vocabulary.unpadded(vocabulary))


BLOOM = shape_of(250880, 70, 14336, 112, embed_layernorm=True, position_embedding_type="alibi")


def test_the_usual_formula_gives_13_and_176_billion() -> None:
    # L(12h^2+13h) + Vh + sh, and with the final LayerNorm's 2h
    assert round(formula_parameters(40, 5120, 2048, 50257) / 1e9) == 13
    assert round((formula_parameters(40, 5120, 2048, 50257) - 2 * 5120) / 1e9) == 13
    assert round(formula_parameters(70, 14336, 2048, 250000) / 1e9) == 176


def test_bloom_has_the_parameters_it_is_known_to_have() -> None:
    assert parameters_of_block(BLOOM) == formula_block_parameters(14336) == 2_466_437_120
    assert BLOOM.vocabulary * BLOOM.hidden == 3_596_615_680
    # L(12h^2+13h) + Vh + 4h: two LayerNorms outside the blocks, no learned positions
    assert parameters(BLOOM) == 70 * (12 * 14336**2 + 13 * 14336) + 250880 * 14336 + 4 * 14336
    assert f"{parameters(BLOOM) / 1e9:.3f}" == "176.247"


def test_a_feed_forward_size_of_its_own_changes_only_the_mlp() -> None:
    # the 104B training that ran with 20480 in place of 4 x 16384 had 2 x h x (4h - f) + (4h - f) fewer a block
    hidden, ffn = 16384, 20480
    fewer = (4 * hidden - ffn) * (2 * hidden + 1)
    usual, narrow = shape_of(50304, 64, hidden, 128), shape_of(50304, 64, hidden, 128, ffn_hidden_size=ffn)
    assert parameters_of_block(usual) - parameters_of_block(narrow) == fewer


def test_learned_positions_count() -> None:
    alibi = shape_of(32, 2, 8, 2, position_embedding_type="alibi")
    learned = shape_of(32, 2, 8, 2, max_position_embeddings=16)
    assert parameters(learned) == parameters(alibi) + 16 * 8
    assert rest_parameters(8, 16, 32) == 32 * 8 + 16 * 8 + 2 * 8


@pytest.mark.parametrize(("layers", "hidden", "vocabulary"), [(2, 8, 32), (40, 5120, 50304)])
def test_the_formula_is_exact_with_learned_positions_and_no_embedding_layernorm(
    layers: int, hidden: int, vocabulary: int
) -> None:
    shape = shape_of(vocabulary, layers, hidden, 2)
    assert parameters(shape) == formula_parameters(layers, hidden, 2048, vocabulary)
    assert parameters_outside_embeddings(shape) == parameters(shape) - (vocabulary + 2048) * hidden


def test_blooms_ranks_hold_their_part_of_what_is_split_and_the_rest_whole() -> None:
    # TP 4 x PP 12: a quarter of the weights and of the split biases; LayerNorms and the other biases whole.
    hidden, tensor = 14336, 4
    block = 12 * hidden**2 // tensor + 7 * hidden // tensor + 6 * hidden
    rows = 250880 * hidden // tensor
    held = parameters_of_ranks(BLOOM, blocks_per_stage(70, 12, BY_BLOCK_AND_EMBEDDING), tensor)
    assert held == [5 * block + rows + 2 * hidden, *[6 * block] * 10, 5 * block + rows + 2 * hidden]


def test_an_output_layer_of_its_own_is_on_the_last_stage_however_many_there_are() -> None:
    untied = shape_of(32, 4, 8, 2, untie_embeddings_and_output_weights=True)
    tied = shape_of(32, 4, 8, 2)
    assert parameters(untied) == parameters(tied) + 32 * 8
    assert parameters_of_ranks(untied, [4], 1) == [parameters(untied)]
    assert parameters_of_ranks(untied, [2, 2], 1) == parameters_of_ranks(tied, [2, 2], 1)
    assert parameters_outside_embeddings(untied) == parameters_outside_embeddings(tied)


def test_one_stage_has_the_weight_that_embeds_and_puts_out_once() -> None:
    assert parameters_of_ranks(BLOOM, [70], 1) == [parameters(BLOOM)]
    assert sum(parameters_of_ranks(BLOOM, [35, 35], 1)) == parameters(BLOOM) + 250880 * 14336


@pytest.mark.parametrize(
    ("batch", "seconds", "printed"), [(2048, 105.22, 149.02), (2048, 104.70, 149.77), (16, 15.23, 8.04)]
)
def test_hardware_tflops_are_those_of_blooms_log(batch: int, seconds: float, printed: float) -> None:
    # the log's seconds are rounded
    assert tflops_per_gpu(BLOOM, batch, 2048, seconds, 384) == pytest.approx(printed, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "linear"),
    [
        ({}, 4 * 64 * 64 + 2 * 64 * 256),  # the formula's 12h^2
        # Queries and output 64 x 64 each, keys and values 16 x 64 each; three matrices of 64 x 128.
        (
            {"num_query_groups": 2, "glu_activation": "swiglu", "ffn_hidden_size": 128},
            2 * 64 * 64 + 2 * 16 * 64 + 3 * 64 * 128,
        ),
    ],
)
def test_a_steps_operations_are_those_of_its_matrix_products(options: dict[str, object], linear: int) -> None:
    shape = shape_of(1000, 3, 64, 8, **options)
    samples, length = 4, 2048
    products = 3 * (2 * linear + 2 * length * 64 + 2 * length * 64)  # scores, and values by them
    logits = 2 * 1000 * 64
    assert step_flops(shape, samples, length) == pytest.approx(
        samples * length * (4 * products + 3 * logits)  # three passes and the recomputed one; logits are not recomputed
    )


@pytest.mark.parametrize(
    ("layers", "hidden", "vocabulary", "length", "learned_positions", "published"),
    [
        pytest.param(24, 1024, 250_880, 2048, 0, 559_214_592, id="bloom-560m"),
        pytest.param(12, 768, 50_257, 1024, 1024, 124_439_808, id="GPT-2"),
        pytest.param(48, 1600, 50_257, 1024, 1024, 1_557_611_200, id="GPT-2 XL"),
        pytest.param(70, 14336, 250_880, 2048, 0, 176_247_271_424, id="BLOOM"),
    ],
)
def test_model_flops_are_six_for_each_published_parameter_and_attentions_whole_square(
    layers: int, hidden: int, vocabulary: int, length: int, learned_positions: int, published: int
) -> None:
    shape = shape_of(vocabulary, layers, hidden, hidden // 64)
    of_token = step_flops(shape, 1, length, MODEL_PASSES) / length
    # One forward and two backward passes of 2 operations: for each weight of 12 h^2 a block and V h logits, and for
    # attention's two products of s h a block.
    square, logits = layers * hidden**2, vocabulary * hidden
    assert of_token == pytest.approx(6 * (12 * square + logits) + 12 * layers * length * hidden)
    ratios = length / (6 * hidden) + vocabulary / (12 * layers * hidden)
    assert of_token == pytest.approx(72 * square * (1 + ratios))
    # Chowdhery et al., arXiv 2204.02311, appendix B: 6 N + 12 L s h. N has biases and norms too, below 0.1 % of all.
    multiplied = published - learned_positions * hidden
    assert of_token == pytest.approx(6 * multiplied + 12 * layers * length * hidden, rel=1e-3)


def test_model_tflops_leave_the_recomputed_forward_pass_of_the_blocks_out() -> None:
    hardware = tflops_per_gpu(BLOOM, 2048, 2048, 105.22, 384)
    of_logits = 6 * 250_880 * 14336 * 2048 * 2048 / (105.22 * 384 * 1e12)  # are not recomputed
    model = tflops_per_gpu(BLOOM, 2048, 2048, 105.22, 384, MODEL_PASSES)
    assert model == pytest.approx((hardware - of_logits) * 3 / 4 + of_logits)
