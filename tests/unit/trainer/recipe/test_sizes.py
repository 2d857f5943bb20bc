"""Parameters, operations and bytes, against printed numbers."""

from __future__ import annotations

import pytest

from trainer.recipe.sizes import (
    MODEL_PASSES,
    ModelShape,
    block_parameters,
    formula_parameters,
    parameters,
    rest_parameters,
    tflops_per_gpu,
)

BLOOM = ModelShape(
    layers=70, hidden=14336, heads=112, sequence_length=2048, vocabulary=250880, embedding_layernorm=True
)


def test_the_usual_formula_gives_13_and_176_billion() -> None:
    # L(12h^2+13h) + Vh + sh, and with the final LayerNorm's 2h
    assert round(formula_parameters(40, 5120, 2048, 50257) / 1e9) == 13
    assert round((formula_parameters(40, 5120, 2048, 50257) - 2 * 5120) / 1e9) == 13
    assert round(formula_parameters(70, 14336, 2048, 250000) / 1e9) == 176


def test_bloom_has_the_parameters_it_is_known_to_have() -> None:
    assert block_parameters(14336) == 2_466_437_120
    assert BLOOM.vocabulary * BLOOM.hidden == 3_596_615_680
    # L(12h^2+13h) + Vh + 4h: two LayerNorms outside the blocks, no learned positions
    assert parameters(BLOOM) == 70 * (12 * 14336**2 + 13 * 14336) + 250880 * 14336 + 4 * 14336
    assert f"{parameters(BLOOM) / 1e9:.3f}" == "176.247"


def test_a_feed_forward_size_of_its_own_changes_only_the_mlp() -> None:
    # the 104B training that ran with 20480 in place of 4 x 16384 had 2 x h x (4h - f) + (4h - f) fewer a block
    hidden, ffn = 16384, 20480
    fewer = (4 * hidden - ffn) * (2 * hidden + 1)
    assert block_parameters(hidden) - block_parameters(hidden, ffn) == fewer


def test_learned_positions_and_an_untied_head_count() -> None:
    small = {"layers": 2, "hidden": 8, "heads": 2, "sequence_length": 16, "vocabulary": 32}
    bare = parameters(ModelShape(**small))  # type: ignore[arg-type]
    assert parameters(ModelShape(**small, positions=16)) == bare + 16 * 8  # type: ignore[arg-type]
    assert parameters(ModelShape(**small, tied_head=False)) == bare + 32 * 8  # type: ignore[arg-type]
    assert rest_parameters(8, 16, 32) == 32 * 8 + 16 * 8 + 2 * 8


@pytest.mark.parametrize(
    ("batch", "seconds", "printed"), [(2048, 105.22, 149.02), (2048, 104.70, 149.77), (16, 15.23, 8.04)]
)
def test_hardware_tflops_are_those_of_blooms_log(batch: int, seconds: float, printed: float) -> None:
    # the log's seconds are rounded
    assert tflops_per_gpu(BLOOM, batch, seconds, 384) == pytest.approx(printed, rel=1e-3)


def test_model_tflops_leave_the_recomputed_forward_pass_out() -> None:
    hardware = tflops_per_gpu(BLOOM, 2048, 105.22, 384)
    assert tflops_per_gpu(BLOOM, 2048, 105.22, 384, MODEL_PASSES) == pytest.approx(hardware * 3 / 4)
