"""The samples one data-parallel rank reads, micro-batch by micro-batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.data.gpt_dataset import BlendedDataset, Dataset, GPTDataset
from trainer.formats.errors import SampleError


class MicroBatch(NamedTuple):
    """Consecutive samples of the training, of which `first_sample` is the index of the first one."""

    first_sample: int
    samples: torch.Tensor  # int64, [micro_batch, sequence_length + 1]


class MicroBatches(Iterator[MicroBatch]):
    """The micro-batches from place `consumed_samples` of the dataset on.

    Samples are taken in the dataset's order, micro_batch_size * dp_size at a time, of which rank r gets the r-th
    part: which samples make a global batch depends on the samples consumed alone. Ends (StopIteration) when less than
    one such piece is left. `workers` threads read ahead, in order; 0 reads when asked. Threads and not processes:
    forking a process that holds gloo or NCCL connections is a known deadlock, and reading is a copy out of a mapped
    file. With `vocab_size` ids are checked against it.
    """

    def __init__(
        self,
        dataset: Dataset,
        consumed_samples: int,
        micro_batch_size: int,
        dp_rank: int,
        dp_size: int,
        workers: int = 0,
        vocab_size: int | None = None,
    ):
        self._dataset, self._vocab_size = dataset, vocab_size
        self._micro_batch_size, self._dp_size = micro_batch_size, dp_size
        self._offset = dp_rank * micro_batch_size
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="reader") if workers > 0 else None
        self._ahead: deque[Future[MicroBatch]] = deque()
        self._most_ahead = 2 * workers
        self._place = -1  # of the micro-batch that is served next
        self.go_to(consumed_samples)

    def go_to(self, consumed_samples: int) -> None:
        """Go on at that place, earlier or later; what was read ahead is dropped then, whatever became of it."""
        if consumed_samples == self._place:
            return
        if consumed_samples > len(self._dataset):
            raise SampleError(
                f"{consumed_samples:,} samples are consumed already, and the data was built for {len(self._dataset):,}"
            )
        while self._ahead:
            self._ahead.popleft().cancel()
        self._next = self._place = consumed_samples

    def __iter__(self) -> MicroBatches:
        return self

    def __next__(self) -> MicroBatch:
        if self._pool is None:
            found = self._read(self._take())
            self._place = self._next
            return found
        while len(self._ahead) < self._most_ahead and self._left():
            self._ahead.append(self._pool.submit(self._read, self._take()))
        if not self._ahead:
            raise StopIteration
        found = self._ahead.popleft().result()
        self._place += self._micro_batch_size * self._dp_size
        return found

    def close(self) -> None:
        """Have the reading threads end; one that hangs in a read is not waited for: why it ends must be said first."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _left(self) -> bool:
        return self._next + self._micro_batch_size * self._dp_size <= len(self._dataset)

    def _take(self) -> int:
        if not self._left():
            raise StopIteration
        first = self._next + self._offset
        self._next += self._micro_batch_size * self._dp_size
        return first

    def _read(self, first: int) -> MicroBatch:
        batch = torch.empty((self._micro_batch_size, self._dataset.sequence_length + 1), dtype=torch.int64)
        smallest, largest = self._dataset.read_rows(first, batch.numpy())
        if self._vocab_size is not None and not 0 <= smallest <= largest < self._vocab_size:
            raise SampleError(
                f"the data holds token id {largest}, the vocabulary has {self._vocab_size:,}: "
                "it was made with another tokenizer; give that one, or prepare the data again"
            )
        return MicroBatch(first, batch)


#: So many first places are looked at; fewer for data that has fewer samples, so that a longer training can be compared.
_PLACES = (16, 64, 256, 1024)
# Of each source of a blend; a rare one may have none of the blend's first places, and be shuffled anew by itself.
_PLACES_OF_A_SOURCE = 16


def sample_order(dataset: GPTDataset | BlendedDataset) -> dict[str, str]:
    """xxh64 of where the first samples lie, by how many were looked at: those of two data sets that both can tell.

    Of a blend also `sources`: of where the first samples of each of its sources lie.
    """
    counts = [count for count in _PLACES if count <= len(dataset)]
    places = [_lies_at(dataset, place) for place in range(counts[-1] if counts else 0)]
    found = {str(count): _digest(places[:count]) for count in counts}
    if isinstance(dataset, BlendedDataset):
        found["sources"] = _digest(
            (number, *source.begins_at(place))
            for number, source in enumerate(dataset.sources)
            for place in range(min(_PLACES_OF_A_SOURCE, len(source)))
        )
    return found


def _digest(places: Iterable[tuple[int, int, int]]) -> str:
    import xxhash

    table: NDArray[np.int64] = np.array(list(places), np.int64).reshape(-1, 3)
    return xxhash.xxh64(table.astype("<i8").tobytes()).hexdigest()


def _lies_at(dataset: GPTDataset | BlendedDataset, place: int) -> tuple[int, int, int]:
    """Number of the source, sequence, token in it that the sample at `place` begins with."""
    if isinstance(dataset, BlendedDataset):
        number, at = dataset.source_of(place)
        return number, *dataset.sources[number].begins_at(at)
    return 0, *dataset.begins_at(place)
