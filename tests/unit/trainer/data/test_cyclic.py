"""Reading on past a dataset's end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.gpt_dataset import Cyclic
from trainer.data.micro_batches import MicroBatches


class Numbered:
    """Five samples, each of its own number."""

    sequence_length = 3

    def __len__(self) -> int:
        return 5

    def __getitem__(self, place: int) -> NDArray[np.int64]:
        out = np.empty(self.sequence_length + 1, np.int64)
        self.read_rows(place, out[None])
        return out

    def read_rows(self, first: int, rows: NDArray[np.int64]) -> tuple[int, int]:
        last = first + len(rows) - 1
        assert 0 <= first <= last < 5
        rows[:] = np.arange(first, last + 1)[:, None]
        return first, last


def window(first: int, samples: int) -> list[int]:
    """Return the samples that one evaluation reads which begins at `first`."""
    dataset: Any = Cyclic(Numbered(), first + samples)
    return [int(row[0]) for batch in MicroBatches(dataset, first, 1, 0, 1) for row in batch.samples]


def test_windows_go_on_round_the_end_and_none_is_read_twice_before_all_were() -> None:
    windows = [window(first, 3) for first in range(0, 15, 3)]
    assert windows == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1], [2, 3, 4]]


def test_one_that_has_not_come_round_is_the_datasets_own() -> None:
    dataset = Cyclic(Numbered(), 5)
    assert [dataset[place].tolist() for place in range(5)] == [Numbered()[place].tolist() for place in range(5)]
    assert (len(dataset), dataset.sequence_length) == (5, 3)
