"""A batch's tokens out of mapped files: the one copy on their way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.data import compiled
from trainer.data.indexed import IndexedTokens
from trainer.data.indices import SampleOrder
from trainer.formats.data.index_header import type_code
from trainer.formats.errors import DataError


class OrderedTokens:
    """A pair of files, read in an order: sample `place` is what `order.shuffle_index[place]` starts with."""

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
        #: A row of the table that `gather` in C++ takes: the enumeration there names these.
        self.row = np.array([number for part in parts for number in part], np.int64)

    def pieces(self, place: int, missing: int) -> Iterator[tuple[int, int, int]]:
        """What the first `missing` tokens of a sample are: sequence after sequence, which tokens [start, stop) of it.

        Raises IndexError where an index leads out of what it points into.
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
    """Write sample `places[i]` of `sources[i]` into `rows[i]`; the smallest and the largest token of all.

    rows: [n, tokens], contiguous. Raises DataError for files that lead out of themselves.
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
    except (IndexError, ValueError):  # an array has no such place, or not so many
        raise _leads_out(source, place) from None


def _leads_out(source: OrderedTokens, place: int) -> DataError:
    return DataError(
        f"sample {place:,} of {source.tokens.prefix} leads out of its files: they or the kept order of its samples "
        "have changed since they were opened; start again, or prepare the data again (opsctl data prepare)"
    )
