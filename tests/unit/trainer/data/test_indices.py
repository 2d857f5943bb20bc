"""Document, sample and shuffle index against the definitions, written out plainly."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.indices import build_order, build_sample_index
from trainer.recipe.lengths import plan_epochs

pytestmark = pytest.mark.usefixtures("engine")


def walked(lengths: list[int], document_index: list[int], samples: int, sequence_length: int) -> list[tuple[int, int]]:
    """Return the sample index by walking token by token."""
    where = [(place, offset) for place, number in enumerate(document_index) for offset in range(lengths[number])]
    return [(0, 0)] + [where[sample * sequence_length] for sample in range(1, samples + 1)]


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=30),
    st.integers(1, 3),
    st.integers(1, 40),
    st.randoms(use_true_random=False),
)
def test_the_sample_index_is_where_walking_the_tokens_leads(
    lengths: list[int], epochs: int, sequence_length: int, random: Random
) -> None:
    document_index = list(range(len(lengths))) * epochs
    random.shuffle(document_index)
    samples = (sum(lengths) * epochs - 1) // sequence_length
    if samples < 1:
        return
    built = build_sample_index(
        np.array(lengths, np.int32), np.array(document_index, np.int32), samples, sequence_length, np.dtype(np.int32)
    )
    assert [tuple(row) for row in built.tolist()] == walked(lengths, document_index, samples, sequence_length)


def test_the_sample_index_has_the_shape_that_was_printed() -> None:
    # A document of 4096 - 532 tokens after a first one that is longer than a sample gives the rows that were printed.
    lengths = np.array([2500, 1064, 5000], np.int32)
    rows = build_sample_index(lengths, np.array([0, 1, 2], np.int32), 3, 2048, np.dtype(np.int32))
    assert rows.tolist() == [[0, 0], [0, 2048], [2, 532], [2, 2580]]


@pytest.mark.parametrize(
    ("samples", "threshold", "epochs", "separate"),
    [
        # 100 tokens, samples of 10: 9 an epoch; a last one is kept apart when fewer than int(threshold * 9) are needed.
        (9, 0.80, 1, False),  # 91 tokens do
        (10, 0.80, 2, True),  # 101 tokens: 1 sample of the second epoch
        (15, 0.80, 2, True),  # 6 < 7
        (16, 0.80, 2, False),  # 7
        (16, 0.95, 2, True),  # 7 < 8: BigScience's threshold
        (17, 0.95, 2, False),
        (19, 0.80, 2, False),  # 191 tokens
        (20, 0.80, 3, True),  # 201 tokens; 19 samples in two epochs
    ],
)
def test_the_last_epoch_is_kept_apart_below_the_threshold(
    samples: int, threshold: float, epochs: int, separate: bool
) -> None:
    plan = plan_epochs(100, 10, samples, threshold)
    assert (plan.epochs, plan.separate_last_epoch) == (epochs, separate)
    assert plan.samples == (epochs * 100 - 1) // 10


def test_the_repeated_part_comes_last_when_the_last_epoch_is_kept_apart() -> None:
    lengths = np.full(50, 20, np.int32)
    plan = plan_epochs(1000, 10, 150)
    assert plan.separate_last_epoch
    order = build_order(0, 50, lengths, plan, 10, seed=7)
    assert sorted(order.document_index[:50].tolist()) == list(range(50))
    assert sorted(order.shuffle_index[:99].tolist()) == list(range(99))
    assert order.shuffle_index[:99].tolist() != list(range(99))
