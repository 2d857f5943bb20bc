"""Samples of `sequence_length + 1` tokens from one file, from a blend of files, or repeated from either."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.data import compiled
from trainer.data.indexed import IndexedTokens
from trainer.data.indices import SampleOrder
from trainer.formats.data.index_header import read_header, type_code
from trainer.formats.errors import DataError


class OrderedTokens:
    """A pair of files with a reading order: sample `place` starts at `order.shuffle_index[place]`."""

    def __init__(self, tokens: IndexedTokens, order: SampleOrder) -> None:
        self.tokens, self.order = tokens, order
        documents, samples, shuffle = order.document_index, order.sample_index, order.shuffle_index
        parts = (
            (compiled.address(tokens.tokens), len(tokens.tokens), type_code(tokens.header.type_name)),
            (compiled.address(tokens.lengths), compiled.address(tokens.pointers), len(tokens)),
            (compiled.address(documents), len(documents), documents.itemsize),
            (compiled.address(samples), len(samples) - 1, samples.itemsize),
            (compiled.address(shuffle), shuffle.itemsize),
        )
        #: A row of the table for `gather` in C++. An enumeration there names the columns.
        self.row = np.array([number for part in parts for number in part], np.int64)

    def pieces(self, place: int, missing: int) -> Iterator[tuple[int, int, int]]:
        """Yield the sequences of a sample's first `missing` tokens, with the range [start, stop) of each.

        Raises IndexError if an index is out of range.
        """
        sample = int(self.order.shuffle_index[place])
        position, start = (int(value) for value in self.order.sample_index[sample])
        while missing:
            sequence = int(self.order.document_index[position])
            stop = min(int(self.tokens.lengths[sequence]), start + missing)
            yield sequence, start, stop
            missing -= stop - start
            position, start = position + 1, 0


def gather(sources: Sequence[OrderedTokens], places: Sequence[int], rows: NDArray[np.int64]) -> tuple[int, int]:
    """Write sample `places[i]` of `sources[i]` to `rows[i]`; return the smallest and the largest token.

    rows: [n, tokens], contiguous. Raises DataError for files with positions outside them.
    """
    library = compiled.library()
    if library is None:
        for source, place, row in zip(sources, places, rows, strict=True):
            _gather_row(source, place, row)
        return int(rows.min()), int(rows.max())
    tables = np.array([source.row.ctypes.data for source in sources], np.int64)
    at = np.array(places, np.int64)
    found = np.empty(2, np.int64)
    shape = (len(rows), rows.shape[1])
    where = compiled.address(rows), compiled.address(found)
    filled = library.gather(compiled.address(tables), compiled.address(at), *shape, *where)
    if filled < len(rows):
        raise _leads_out(sources[filled], places[filled])
    return int(found[0]), int(found[1])


def _gather_row(source: OrderedTokens, place: int, row: NDArray[np.int64]) -> None:
    filled = 0
    try:
        for sequence, start, stop in source.pieces(place, len(row)):
            row[filled : filled + stop - start] = source.tokens.part(sequence, start, stop)
            filled += stop - start
    except (IndexError, ValueError):  # an array is shorter than its place
        raise _leads_out(source, place) from None


def _leads_out(source: OrderedTokens, place: int) -> DataError:
    return DataError(
        f"sample {place:,} of {source.tokens.prefix} is outside its files: they or the saved sample order "
        "have changed since they were opened; start again, or prepare the data again (opsctl data prepare)"
    )


def file_identity(prefix: str) -> dict[str, Any]:
    """Return the facts that distinguish versions of a `.bin/.idx` pair. Raises DataError if one is missing."""
    # A prefix is not a file, so only its folder can be a link.
    folder, _, name = prefix.rpartition("/")
    folder = os.path.realpath(folder or ("/" if prefix.startswith("/") else "."))
    return {"prefix": f"{folder.rstrip('/')}/{name}", **_versions(prefix)}


def _versions(prefix: str) -> dict[str, list[int]]:
    found = {}
    for ending in ("bin", "idx"):
        try:
            state = os.stat(f"{prefix}.{ending}")  # noqa: PTH116
        except OSError as error:
            read_header(prefix)  # reports the missing file by name
            raise DataError(f"cannot read {prefix}.{ending}: {error.strerror}") from None
        found[ending] = [state.st_size, state.st_mtime_ns]
    return found


class Pair:
    """A pair `PREFIX.bin` and `PREFIX.idx`. Its header and sizes are checked when it is opened.

    Thousands of pairs are identified with two stat calls each. A pair that was valid then, and has the same age and
    size, is still valid.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    @cached_property
    def identity(self) -> dict[str, Any]:
        """See `file_identity`. Raises DataError."""
        return file_identity(self.prefix)

    @cached_property
    def text(self) -> str:
        """The `identity` as text. Raises DataError."""
        versions = ", ".join(f"{ending} {self.identity[ending]}" for ending in ("bin", "idx"))
        return f"{self.identity['prefix']} ({versions})"

    @cached_property
    def data(self) -> IndexedTokens:
        """The mapped files. Raises DataError, also if they changed since `identity`."""
        known = self.identity
        opened = IndexedTokens(self.prefix)
        for ending, version in _versions(self.prefix).items():
            if version != known[ending]:
                raise DataError(
                    f"{self.prefix}.{ending} has changed since the training started, and so has the order of its "
                    "samples; wait until the file is complete, then start again"
                )
        return opened


class Dataset(Protocol):
    """A source of samples. `dataset[i]` is a new int64 array [sequence_length + 1]."""

    sequence_length: int

    def __len__(self) -> int: ...
    def __getitem__(self, place: int) -> NDArray[np.int64]: ...
    def read_rows(self, first: int, rows: NDArray[np.int64]) -> tuple[int, int]:
        """Write the samples from place `first` on into `rows`, [n, sequence_length + 1], contiguous.

        Returns the smallest and the largest token. Raises DataError if the files can no longer be read.
        """


@dataclass(frozen=True)
class PartOrder:
    """The order in which sequences [first, last) of a pair are read. tokens: in them; None if not counted."""

    first: int
    last: int
    tokens: int | None
    order: SampleOrder


@dataclass(frozen=True)
class BlendOrder:
    """The order of a blend. dataset_index, dataset_sample_index: [samples], part of each place, and place in it."""

    parts: list[PartOrder]
    dataset_index: NDArray[np.int16]
    dataset_sample_index: NDArray[np.int64]


class GPTDataset:
    """Samples from sequences [first, last) of one file, which is opened at the first read."""

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
        """The number of tokens in its sequences."""
        return self._pair.data.tokens_of(self.first, self.last) if self._tokens is None else self._tokens

    def __len__(self) -> int:
        return len(self.shuffle_index)

    def begins_at(self, place: int) -> tuple[int, int]:
        """Return the sequence in which sample `place` begins, and the token in it."""
        position, start = self.sample_index[int(self.shuffle_index[place])]
        return int(self.document_index[int(position)]), int(start)

    def __getitem__(self, place: int) -> NDArray[np.int64]:
        return _sample(self, place)

    def pieces(self, place: int) -> Iterator[tuple[int, int, int]]:
        """Yield the sequences of sample `place`, with the range [start, stop) of each."""
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
        """Return the number of the dataset that serves sample `place`, and the place there."""
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


class Cyclic:
    """`samples` places of a shorter dataset: place i is its sample i modulo its length.

    A read that continues where the last one ended covers all samples before one repeats.
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
