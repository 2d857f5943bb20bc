"""The samples of each rank, which depend only on the samples consumed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.trainer.data.conftest import MakePair, options_for
from trainer.data.build import DataError, build_datasets
from trainer.data.gpt_dataset import Dataset
from trainer.data.micro_batches import MicroBatches


@pytest.fixture
def dataset(make_pair: MakePair) -> Dataset:
    prefix = make_pair("corpus", lengths=[5, 40, 1, 17, 60, 33] * 5)
    train = build_datasets(options_for(data_path=[prefix]), 96, 0, 0).train
    assert train is not None
    return train


def samples_read(dataset: Dataset, consumed: int, micro_batch: int, replicas: int, workers: int = 0) -> list[list[int]]:
    """All samples in the order in which the replicas together read them."""
    readers = [MicroBatches(dataset, consumed, micro_batch, rank, replicas, workers) for rank in range(replicas)]
    together: list[list[int]] = []
    for parts in zip(*readers, strict=True):
        assert [part.first_sample for part in parts] == [
            consumed + len(together) + rank * micro_batch for rank in range(replicas)
        ]
        together += torch.cat([part.samples for part in parts]).tolist()
    for reader in readers:
        reader.close()
    return together


@pytest.mark.parametrize(("micro_batch", "replicas"), [(1, 1), (4, 1), (1, 4), (2, 2), (3, 8), (8, 3)])
def test_every_layout_reads_the_same_samples_in_the_same_order(
    dataset: Dataset, micro_batch: int, replicas: int
) -> None:
    plain = [dataset[place].tolist() for place in range(len(dataset))]
    whole = len(dataset) // (micro_batch * replicas) * (micro_batch * replicas)
    assert samples_read(dataset, 0, micro_batch, replicas) == plain[:whole]


def test_a_resumed_reader_goes_on_with_the_next_sample_on_any_layout(dataset: Dataset) -> None:
    plain = [dataset[place].tolist() for place in range(len(dataset))]
    assert samples_read(dataset, 24, 2, 2)[:40] == plain[24:64]
    assert samples_read(dataset, 24, 5, 1)[:40] == plain[24:64]


@pytest.mark.parametrize("workers", [1, 3])
def test_reading_ahead_changes_nothing(dataset: Dataset, workers: int) -> None:
    assert samples_read(dataset, 4, 2, 2, workers) == samples_read(dataset, 4, 2, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_reader_goes_to_any_place_and_drops_what_it_has_read_ahead(dataset: Dataset, workers: int) -> None:
    plain = [dataset[place].tolist() for place in range(len(dataset))]
    reader = MicroBatches(dataset, 0, 4, 0, 1, workers)
    for place in (0, 8, 40, 44, 4):
        reader.go_to(place)
        first, samples = next(reader)
        assert (first, samples.tolist()) == (place, plain[place : place + 4])
    reader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_passed_over_is_not_read_and_what_comes_next_is_read_once(dataset: Dataset, workers: int) -> None:
    read: list[int] = []

    class Watched:
        sequence_length = dataset.sequence_length

        def __len__(self) -> int:
            return len(dataset)

        def read_rows(self, first: int, rows: Any) -> tuple[int, int]:
            read.extend(range(first, first + len(rows)))
            return dataset.read_rows(first, rows)

    watched: Any = Watched()
    reader = MicroBatches(watched, 0, 2, 0, 1, workers)
    reader.go_to(60)
    for place in (60, 62, 64):
        reader.go_to(place)
        next(reader)
    reader.close()
    assert sorted(read)[:6] == [60, 61, 62, 63, 64, 65]
    assert len(set(read)) == len(read)


def test_batches_are_int64_rows_of_one_token_more_than_the_sequence(dataset: Dataset) -> None:
    batch = next(MicroBatches(dataset, 0, 3, 0, 1)).samples
    assert batch.dtype == torch.int64 and batch.shape == (3, 9)


def test_more_consumed_samples_than_the_data_has_are_refused_with_both_numbers(dataset: Dataset) -> None:
    with pytest.raises(DataError, match=rf"\b1,000 samples\b.*\b{len(dataset)}\b"):
        MicroBatches(dataset, 1000, 1, 0, 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_ids_beyond_the_vocabulary_are_refused(dataset: Dataset, workers: int) -> None:
    reader = MicroBatches(dataset, 0, 8, 0, 1, workers, vocab_size=100)
    with pytest.raises(DataError, match=r"token id \d+\b.*\b100\b"):
        list(reader)
    reader.close()
