"""The samples that one data-parallel rank reads, by micro-batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from trainer.data.gpt_dataset import Dataset
from trainer.formats.errors import SampleError


class MicroBatch(NamedTuple):
    """Consecutive samples of the training. `first_sample` is the index of the first one."""

    first_sample: int
    samples: torch.Tensor  # int64, [micro_batch, sequence_length + 1]


class MicroBatches(Iterator[MicroBatch]):
    """The micro-batches from place `consumed_samples` of the dataset on.

    Samples are taken in the dataset's order, micro_batch_size * dp_size at a time, and rank r gets the r-th part. The
    samples of a global batch therefore depend only on the samples consumed. The iterator ends (StopIteration) when
    less than one such piece is left. `workers` threads read ahead, in order; 0 reads on request. They are threads
    because forking a process with gloo or NCCL connections is a known deadlock, and reading is a copy out of a mapped
    file. With `vocab_size`, ids are checked against it.
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
        self._place = -1  # of the next micro-batch
        self.go_to(consumed_samples)

    def go_to(self, consumed_samples: int) -> None:
        """Continue at that place, earlier or later. Everything that was read ahead is dropped."""
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
        """Stop the reading threads without waiting for a hung read: the reason for closing must be reported first."""
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
                f"the data has token id {largest}, the vocabulary has {self._vocab_size:,}: "
                "it was made with another tokenizer; use that one, or prepare the data again"
            )
        return MicroBatch(first, batch)
