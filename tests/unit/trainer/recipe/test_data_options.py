"""The form of weights in data options."""

from __future__ import annotations

import pytest

from trainer.recipe.data_options import is_number, weight


@pytest.mark.parametrize(("value", "means"), [("0.3", 0.3), (0.7, 0.7), (1, 1.0), ("1e-1", 0.1)])
def test_a_weight_is_a_number_above_0(value: object, means: float) -> None:
    assert weight(value) == means and is_number(value)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", 0, float("inf")])
def test_a_number_that_is_no_weight_is_no_prefix_either(value: object) -> None:
    assert weight(value) is None and is_number(value)


@pytest.mark.parametrize("value", ["data/corpus", "0.3x", "", "1,5"])
def test_what_is_no_number_is_a_prefix(value: object) -> None:
    assert weight(value) is None and not is_number(value)
