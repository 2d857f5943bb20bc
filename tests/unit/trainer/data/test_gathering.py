"""A batch's tokens: by C++ and by numpy, against documents laid end to end, and out of files that are damaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.trainer.data.conftest import MakePair
from trainer.data.gpt_dataset import OrderedTokens, gather
from trainer.data.indexed import IndexedTokens
from trainer.data.indices import SampleOrder, build_order
from trainer.formats.errors import DataError
from trainer.recipe.lengths import plan_epochs

pytestmark = pytest.mark.usefixtures("engine")
LENGTH = 8


def ordered(prefix: str, epochs: int = 2, wide: bool = False) -> OrderedTokens:
    data = IndexedTokens(prefix)
    tokens = int(data.lengths.sum())
    plan = plan_epochs(tokens, LENGTH, (epochs * tokens - 1) // LENGTH)
    order = build_order(0, len(data), data.lengths, plan, LENGTH, 1234)
    arrays: tuple[NDArray[Any], ...] = (order.document_index, order.sample_index, order.shuffle_index)
    return OrderedTokens(data, SampleOrder(*(one.astype(np.int64) for one in arrays)) if wide else order)


def end_to_end(source: OrderedTokens, place: int) -> list[int]:
    """Sample `place` of the documents written one after the other."""
    tokens: list[int] = []
    for number in source.order.document_index.tolist():
        tokens += source.tokens[number].tolist()
    start = int(source.order.shuffle_index[place]) * LENGTH
    return tokens[start : start + LENGTH + 1]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "<i4", "<i8", "<u2"])
def test_every_row_is_its_sample_of_the_documents_laid_end_to_end(make_pair: MakePair, dtype: str, wide: bool) -> None:
    random = np.random.default_rng(1)
    most = min(int(np.iinfo(dtype).max), 2**40)
    documents = [random.integers(0, most, length, endpoint=True).tolist() for length in (3, 0, 0, 40, 1, 17, 0, 9, 0)]
    one, other = ordered(make_pair("one", documents, dtype=dtype), wide=wide), ordered(make_pair("other", [[7] * 30]))
    count = len(one.order.shuffle_index)
    sources, places = [one] * count + [other], [*range(count), 0]
    rows = np.full((count + 1, LENGTH + 1), -1)
    assert gather(sources, places, rows) == (rows.min(), rows.max())
    assert rows.tolist() == [end_to_end(*both) for both in zip(sources, places, strict=True)]


def test_the_smallest_token_may_be_none_that_is_possible(make_pair: MakePair) -> None:
    source = ordered(make_pair("one", [[5, 6, -3, 8] * 10], dtype="<i4"))
    assert gather([source], [0], np.empty((1, LENGTH + 1), np.int64)) == (-3, 8)


@pytest.mark.parametrize("damage", ["document", "position", "offset", "sample", "pointer", "length", "beyond"])
def test_an_index_that_leads_out_of_what_it_points_into_is_refused_by_name_and_not_followed(
    make_pair: MakePair, damage: str
) -> None:
    source = ordered(make_pair("corpus", lengths=[30, 40]), epochs=1)
    documents, samples, shuffle = source.order.document_index, source.order.sample_index, source.order.shuffle_index
    data = source.tokens
    place = 0
    match damage:
        case "document":
            documents[:] = 2
        case "position":
            samples[:, 0] = len(documents)
        case "offset":
            samples[:, 1] = 50
        case "sample":
            shuffle[:] = len(samples)
        case "pointer":
            data.pointers = np.array([10**12, 10**12])
        case "length":
            data.lengths = np.array([1, 1], np.int32)
            samples[:, 1] = 0
        case "beyond":
            place = len(shuffle)
    damaged = OrderedTokens(data, source.order)
    with pytest.raises(DataError, match=rf"\b{place} of .*/corpus\b"):
        gather([damaged], [place], np.empty((1, LENGTH + 1), np.int64))
