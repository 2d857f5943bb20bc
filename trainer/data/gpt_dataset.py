"""Samples of `sequence_length + 1` tokens from one file or from a blend of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.data.gathering import OrderedTokens, gather
from trainer.data.orders import BlendOrder, PartOrder
from trainer.data.pair import Pair


class Dataset(Protocol):
    """What serves samples. `dataset[i]` is a fresh int64 array [sequence_length + 1]."""

    sequence_length: int

    def __len__(self) -> int: ...
    def __getitem__(self, place: int) -> NDArray[np.int64]: ...
    def read_rows(self, first: int, rows: NDArray[np.int64]) -> tuple[int, int]:
        """Write the samples from place `first` on into `rows`, [n, sequence_length + 1], contiguous.

        Returns the smallest and the largest token of all. Raises DataError for files that can no longer be read.
        """


class GPTDataset:
    """Samples from sequences [first, last) of one file, which is opened when one is read."""

    def __init__(self, pair: Pair, part: PartOrder, sequence_length: int) -> None:
        self._pair = pair
        self.prefix, self.first, self.last = pair.prefix, part.first, part.last
        self._tokens = part.tokens
        self.sequence_length = sequence_length
        self._order = part.order
        self.document_index = part.order.document_index
        self.sample_index = part.order.sample_index
        self.shuffle_index = part.order.shuffle_index

    @cached_property
    def ordered(self) -> OrderedTokens:
        """The file in its order."""
        return OrderedTokens(self._pair.data, self._order)

    @cached_property
    def tokens_per_epoch(self) -> int:
        """Tokens of its sequences."""
        return self._pair.data.tokens_of(self.first, self.last) if self._tokens is None else self._tokens

    def __len__(self) -> int:
        return len(self.shuffle_index)

    def begins_at(self, place: int) -> tuple[int, int]:
        """The sequence in which sample `place` begins, and the token in it."""
        position, start = self.sample_index[int(self.shuffle_index[place])]
        return int(self.document_index[int(position)]), int(start)

    def __getitem__(self, place: int) -> NDArray[np.int64]:
        return _sample(self, place)

    def pieces(self, place: int) -> Iterator[tuple[int, int, int]]:
        """What sample `place` is made of: sequence after sequence, its number and which tokens [start, stop) of it."""
        return self.ordered.pieces(place, self.sequence_length + 1)

    def read_rows(self, first: int, rows: NDArray[np.int64]) -> tuple[int, int]:
        """See `Dataset.read_rows`."""
        return gather([self.ordered] * len(rows), range(first, first + len(rows)), rows)


class BlendedDataset:
    """Several datasets mixed by weight."""

    def __init__(self, sources: Sequence[GPTDataset], weights: Sequence[float], order: BlendOrder) -> None:
        self.sources, self.weights = sources, weights
        self.sequence_length = sources[0].sequence_length if sources else 0
        self.dataset_index, self.dataset_sample_index = order.dataset_index, order.dataset_sample_index

    def __len__(self) -> int:
        return len(self.dataset_index)

    def source_of(self, place: int) -> tuple[int, int]:
        """The number of the dataset that serves sample `place`, and the place there."""
        return int(self.dataset_index[place]), int(self.dataset_sample_index[place])

    def __getitem__(self, place: int) -> NDArray[np.int64]:
        return _sample(self, place)

    def read_rows(self, first: int, rows: NDArray[np.int64]) -> tuple[int, int]:
        """See `Dataset.read_rows`."""
        served = slice(first, first + len(rows))
        sources = [self.sources[number].ordered for number in self.dataset_index[served].tolist()]
        return gather(sources, self.dataset_sample_index[served].tolist(), rows)


def _sample(dataset: Dataset, place: int) -> NDArray[np.int64]:
    out = np.empty(dataset.sequence_length + 1, np.int64)
    dataset.read_rows(place, out[None])
    return out
