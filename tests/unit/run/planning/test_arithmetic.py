"""The formulas, against numbers that BigScience printed. Decimals agree within one unit of the last one shown."""

from __future__ import annotations

import pytest

from opsctl.run.planning import arithmetic
from trainer.recipe.schedule import samples_of_tokens
from trainer.recipe.sizes import formula_block_parameters, formula_parameters, rest_parameters


@pytest.mark.parametrize(
    ("billion_tokens", "billion_parameters", "gpus", "tflops", "days"),
    [(300, 13, 256, 45, 31.35), (450, 167, 384, 150, 120.8)],
)
def test_training_days(billion_tokens: int, billion_parameters: int, gpus: int, tflops: int, days: float) -> None:
    found = arithmetic.training_days(billion_parameters * 1e9, billion_tokens * 1e9, gpus, tflops)
    assert found == pytest.approx(days, abs=0.01)


def test_days_left() -> None:
    assert arithmetic.days_left(192_755_367_936, 341e9, 105, 2048, 2048) == pytest.approx(42.9531114154392, rel=1e-12)


def test_checkpoint_sizes() -> None:
    assert arithmetic.weights_gib(176e9) == pytest.approx(327.82, abs=0.01)
    assert arithmetic.checkpoint_gib(176e9) == pytest.approx(2294.77, abs=0.01)


def test_memory_of_a_replica() -> None:
    assert arithmetic.memory_gb(13e9) == 234


def test_weights_by_part() -> None:
    hidden, layers, sequence, vocabulary = 14336, 70, 2048, 250680
    assert arithmetic.weights_gib(formula_block_parameters(hidden)) == pytest.approx(4.59, abs=0.01)
    assert arithmetic.weights_gib(rest_parameters(hidden, sequence, vocabulary)) == pytest.approx(6.75, abs=0.01)
    whole = formula_parameters(layers, hidden, sequence, vocabulary)
    assert arithmetic.weights_gib(whole) == pytest.approx(328.34, abs=0.01)


def test_initial_standard_deviations() -> None:
    assert arithmetic.init_std_third(14336) == pytest.approx(0.00482197968631537, rel=1e-14)
    assert arithmetic.init_std_two_fifths(14336) == pytest.approx((2 / (5 * 14336)) ** 0.5)


def test_samples_of_tokens() -> None:
    assert samples_of_tokens(int(260e9), 2048) == 126_953_125
