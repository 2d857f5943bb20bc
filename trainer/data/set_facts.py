"""What is in one pair of data files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.data.indexed import IndexedTokens
from trainer.formats.data.data_inspected import InspectedSet, SequenceLengths, SetNotes
from trainer.formats.data.data_notes import read_notes
from trainer.formats.data.index_header import bin_path, idx_path

_SHARES = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)


def inspect_set(prefix: str) -> InspectedSet:
    """Every length and offset is read, no token. Raises DataError for what is missing or cannot be."""
    data = IndexedTokens(prefix)
    data.check_every_entry()
    noted = read_notes(prefix)
    return InspectedSet(
        data=prefix,
        documents=len(data.document_indices) - 1,
        sequences=len(data),
        tokens=data.header.tokens,
        empty=int(np.count_nonzero(data.lengths == 0)),
        dtype=data.header.type_name,
        bin_bytes=Path(bin_path(prefix)).stat().st_size,
        idx_bytes=Path(idx_path(prefix)).stat().st_size,
        lengths=_lengths(data.lengths) if len(data) else None,
        notes=None
        if noted is None
        else SetNotes(
            vocab_size=noted.vocab_size,
            eod=noted.eod,
            tokenizer=noted.tokenizer,
            tokenizer_sha256=noted.tokenizer_sha256,
        ),
    )


def _lengths(lengths: NDArray[np.int32]) -> SequenceLengths:
    found = np.quantile(lengths, _SHARES, method="inverted_cdf").tolist()
    shortest, p10, median, p90, p99, longest = (int(one) for one in found)
    mean = float(lengths.mean(dtype=np.float64))
    return SequenceLengths(shortest=shortest, p10=p10, median=median, p90=p90, p99=p99, longest=longest, mean=mean)
