"""The blend's order against the rule, one step at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data import indices
from trainer.recipe.lengths import sizes_to_build, target_sizes

pytestmark = pytest.mark.usefixtures("engine")


def one_by_one(weights: list[float], samples: int) -> tuple[list[int], list[int]]:
    """Return the dataset furthest behind `weight * max(place, 1)`, the first of equals."""
    used = [0] * len(weights)
    datasets, places = [], []
    for place in range(samples):
        behind = [weight * max(place, 1) - count for weight, count in zip(weights, used, strict=True)]
        best = behind.index(max(behind))
        datasets.append(best)
        places.append(used[best])
        used[best] += 1
    return datasets, places


@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=12), st.integers(1, 3000))
def test_pieces_run_side_by_side_give_the_step_by_step_order(raw: list[float], samples: int) -> None:
    weights = indices.normalized(raw)
    datasets, places = indices.blend_order(weights, samples)
    assert (datasets.tolist(), places.tolist()) == one_by_one(weights, samples)


@pytest.mark.parametrize("weights", [[0.5, 0.5], [1e-4, 1 - 1e-4], [0.1] * 10, [0.7, 0.2, 0.1]])
def test_equal_and_rare_weights_too(weights: list[float]) -> None:
    datasets, places = indices.blend_order(weights, 12_000)
    assert (datasets.tolist(), places.tolist()) == one_by_one(weights, 12_000)


def test_each_part_is_built_half_a_percent_larger_and_rounded_up_twice() -> None:
    assert target_sizes([0.3, 0.7], 1001) == [301, 701]
    assert sizes_to_build([0.3, 0.7], 1001) == [303, 705]
