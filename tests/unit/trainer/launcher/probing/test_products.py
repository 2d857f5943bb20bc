"""Wrong products are detected, and right ones are never reported."""

from __future__ import annotations

import numpy
import pytest

from trainer.launcher.probing.products import whole_numbers, wrong_rows


@pytest.fixture(scope="module")
def product() -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    left, right = whole_numbers(256)
    return left, right, left.astype(numpy.float32) @ right.astype(numpy.float32)


def test_fp32_computes_it_exactly(product: tuple[numpy.ndarray, ...]) -> None:
    left, right, found = product
    assert (found[:64] == left[:64] @ right).all()
    assert wrong_rows(left, right, found) == 0


@pytest.mark.parametrize("place", [(0, 0), (255, 255), (17, 100)])
@pytest.mark.parametrize("by", [1.0, -1.0, 65536.0, float("nan"), float("inf")])
def test_one_wrong_element_is_seen(product: tuple[numpy.ndarray, ...], place: tuple[int, int], by: float) -> None:
    left, right, found = product
    lying = found.copy()
    lying[place] += by
    assert wrong_rows(left, right, lying) == 1
