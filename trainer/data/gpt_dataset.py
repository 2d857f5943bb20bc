"""Samples of `sequence_length + 1` tokens from one file or from a blend of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.data import blend
from trainer.data.index_cache import Arrays, IndexCache, file_identity
from trainer.data.indexed import IndexedTokens
from trainer.data.indices import EpochPlan, build_order, plan_epochs
from trainer.formats.data_check import too_small
from trainer.formats.errors import DataError


class Dataset(Protocol):
    """What serves samples. `dataset[i]` is a fresh int64 array [sequence_length + 1]."""

    sequence_length: int

    def __len__(self) -> int: ...
    def __getitem__(self, place: int) -> NDArray[np.int64]: ...
    def read_into(self, place: int, out: NDArray[np.int64]) -> None:
        """Write sample `place` into `out`, [sequence_length + 1]."""


@dataclass(frozen=True)
class OrderSettings:
    """What the order of samples depends on besides the data."""

    sequence_length: int
    seed: int
    separate_last_epoch_threshold: float


class GPTDataset:
    """Samples from sequences [first, last) of one file; `samples` at least, or one epoch when None.

    `name` is for messages.
    """

    def __init__(
        self,
        data: IndexedTokens,
        first: int,
        last: int,
        samples: int | None,
        settings: OrderSettings,
        cache: IndexCache,
        name: str,
    ):
        self._data = data
        self.prefix, self.first, self.last = data.prefix, first, last
        self.sequence_length = settings.sequence_length
        asked = {"samples": samples, "range": [first, last], "settings": vars(settings)}
        arrays = cache.load_or_build(
            {"what": "GPT sample order", "version": 1, "data": file_identity(data.prefix), **asked},
            lambda: self._build(first, last, samples, settings, name),
        )
        self.document_index, self.sample_index, self.shuffle_index = (
            arrays["document"],
            arrays["sample"],
            arrays["shuffle"],
        )

    def _build(self, first: int, last: int, samples: int | None, settings: OrderSettings, name: str) -> Arrays:
        self._data.check_every_entry()
        plan = self._plan(first, last, samples, settings, name)
        order = build_order(first, last, self._data.lengths, plan, settings.sequence_length, settings.seed)
        return {"document": order.document_index, "sample": order.sample_index, "shuffle": order.shuffle_index}

    def _plan(self, first: int, last: int, samples: int | None, settings: OrderSettings, name: str) -> EpochPlan:
        tokens = int(self._data.lengths[first:last].sum(dtype=np.int64))
        if tokens < settings.sequence_length + 1:
            raise too_small(name, self._data.prefix, last - first, len(self._data), tokens, settings.sequence_length)
        return plan_epochs(tokens, settings.sequence_length, samples, settings.separate_last_epoch_threshold)

    def __len__(self) -> int:
        return len(self.shuffle_index)

    @property
    def tokens_per_epoch(self) -> int:
        """Tokens of its sequences."""
        return int(self._data.lengths[self.first : self.last].sum(dtype=np.int64))

    def begins_at(self, place: int) -> tuple[int, int]:
        """The sequence in which sample `place` begins, and the token in it."""
        position, start = self.sample_index[int(self.shuffle_index[place])]
        return int(self.document_index[int(position)]), int(start)

    def __getitem__(self, place: int) -> NDArray[np.int64]:
        out = np.empty(self.sequence_length + 1, np.int64)
        self.read_into(place, out)
        return out

    def pieces(self, place: int) -> Iterator[tuple[int, int, int]]:
        """What sample `place` is made of: sequence after sequence, its number and which tokens [start, stop) of it."""
        sample = int(self.shuffle_index[place])
        position, start = (int(value) for value in self.sample_index[sample])
        missing = self.sequence_length + 1
        while missing:
            sequence = int(self.document_index[position])
            stop = min(int(self._data.lengths[sequence]), start + missing)
            yield sequence, start, stop
            missing -= stop - start
            position, start = position + 1, 0

    def read_into(self, place: int, out: NDArray[np.int64]) -> None:
        """Write sample `place` into `out`, [sequence_length + 1].

        The one copy on the way from the mapped file to the batch.
        """
        filled = 0
        for sequence, start, stop in self.pieces(place):
            out[filled : filled + stop - start] = self._data.part(sequence, start, stop)
            filled += stop - start


class BlendedDataset:
    """Several datasets mixed by weight."""

    def __init__(
        self,
        datasets: Sequence[GPTDataset],
        weights: Sequence[float],
        samples: int,
        cache: IndexCache,
        name: str,
    ):
        self.sources = datasets
        self.sequence_length = datasets[0].sequence_length
        # Normalised once more, as Megatron does: the last bits of the weights decide between equals.
        self.weights = blend.normalized(weights)

        def build() -> Arrays:
            dataset, place = blend.blend_order(self.weights, samples)
            used = np.bincount(dataset, minlength=len(datasets)).tolist()
            for number, (count, source) in enumerate(zip(used, datasets, strict=True), 1):
                if count > len(source):
                    has = f"which gives {len(source):,}"
                    raise DataError(f"the {name} blend asks for {count:,} samples of its source {number}, {has}")
            return {"dataset": dataset, "place": place}

        description = {"weights": [weight.hex() for weight in self.weights], "sizes": [len(one) for one in datasets]}
        arrays = cache.load_or_build({"what": "blend order", "version": 1, "samples": samples, **description}, build)
        self.dataset_index, self.dataset_sample_index = arrays["dataset"], arrays["place"]

    def __len__(self) -> int:
        return len(self.dataset_index)

    def source_of(self, place: int) -> tuple[int, int]:
        """The number of the dataset that serves sample `place`, and the place there."""
        return int(self.dataset_index[place]), int(self.dataset_sample_index[place])

    def __getitem__(self, place: int) -> NDArray[np.int64]:
        number, at = self.source_of(place)
        return self.sources[number][at]

    def read_into(self, place: int, out: NDArray[np.int64]) -> None:
        """See `Dataset.read_into`."""
        number, at = self.source_of(place)
        self.sources[number].read_into(at, out)
