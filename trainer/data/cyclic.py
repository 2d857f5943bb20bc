"""A dataset that begins again where it ends: what is read a piece at a time, for as long as a training lasts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.data.gpt_dataset import Dataset


class Cyclic:
    """`samples` places of a dataset that has fewer: place i is its sample i modulo its own length.

    What is read on from where the last reading ended goes through all of it before any sample comes again.
    """

    def __init__(self, dataset: Dataset, samples: int) -> None:
        self._dataset, self._samples = dataset, samples
        self.sequence_length = dataset.sequence_length

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, place: int) -> NDArray[np.int64]:
        return self._dataset[place % len(self._dataset)]

    def read_rows(self, first: int, rows: NDArray[np.int64]) -> tuple[int, int]:
        """See `Dataset.read_rows`."""
        ranges = []
        while len(rows):
            begin = first % len(self._dataset)
            count = min(len(rows), len(self._dataset) - begin)
            ranges.append(self._dataset.read_rows(begin, rows[:count]))
            first, rows = first + count, rows[count:]
        smallest, largest = zip(*ranges, strict=True)
        return min(smallest), max(largest)
