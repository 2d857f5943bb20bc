r"""Megatron's `.bin/.idx` pair: tokens without a header, and the start of each sequence.

`.idx`, little endian: 9 bytes `MMIDIDX\0\0` | u64 version 1 | u8 dtype code | u64 sequences N | u64 document entries D
| N x int32 lengths in tokens | N x int64 byte offsets into the `.bin` | D x int64 first sequence of each document,
then N.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.formats.data.index_header import bin_path, corrupt, header_bytes, idx_path, read_header

#: Smaller vocabularies are stored in 16 bits; Megatron's own bound.
UINT16_VOCAB_LIMIT = 65_500


def token_dtype(vocab_size: int) -> np.dtype[np.integer]:
    """Return the stored type for ids of a vocabulary: uint16 below 65,500, else int32."""
    return np.dtype("<u2" if vocab_size < UINT16_VOCAB_LIMIT else "<i4")


class IndexedTokens:
    """A `.bin/.idx` pair, mapped into memory. Opening it checks the header and the sizes of both files.

    lengths: [N] int32, tokens of each sequence. pointers: [N] int64, its first byte in the `.bin`. tokens: [T], all of
    them. Raises DataError for missing, truncated or foreign files.
    """

    def __init__(self, prefix: str | Path):
        self.prefix = str(prefix)
        header = self.header = read_header(prefix)
        raw = _mapped(idx_path(prefix))
        self.lengths: NDArray[np.int32] = raw[header.lengths_at : header.pointers_at].view("<i4")
        self.pointers: NDArray[np.int64] = raw[header.pointers_at : header.documents_at].view("<i8")
        entries_end = header.documents_at + 8 * header.document_entries
        self.document_indices: NDArray[np.int64] = raw[header.documents_at : entries_end].view("<i8")
        self.dtype: np.dtype[np.integer] = np.dtype(header.type_name).newbyteorder("<")
        self.tokens: NDArray[np.integer] = _mapped(bin_path(prefix)).view(self.dtype)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, sequence: int) -> NDArray[np.integer]:
        """Return the tokens of one sequence, a view."""
        return self.part(sequence, 0, int(self.lengths[sequence]))

    def part(self, sequence: int, start: int, stop: int) -> NDArray[np.integer]:
        """Return tokens [start, stop) of one sequence, a view into the mapped file."""
        first = int(self.pointers[sequence]) // self.dtype.itemsize
        return self.tokens[first + start : first + stop]

    def tokens_of(self, first: int, last: int) -> int:
        """Return the number of tokens in the sequences [first, last)."""
        return int(self.lengths[first:last].sum(dtype=np.int64))

    def check_every_entry(self) -> None:
        """Read all lengths and offsets, 20 bytes a sequence. Raises DataError for an impossible one."""
        entries = self.document_indices
        if not len(entries) or entries[0] != 0 or entries[-1] != len(self) or np.any(entries[1:] < entries[:-1]):
            raise corrupt(self.prefix, f"its document entries do not run from 0 to {len(self):,}")
        wrong = np.flatnonzero((self.lengths < 0) | (self.pointers != _pointers(self.lengths, self.dtype.itemsize)))
        if not len(wrong):
            return
        at = int(wrong[0])
        if self.lengths[at] < 0:
            raise corrupt(self.prefix, f"sequence {at:,} has length {int(self.lengths[at]):,}")
        expected = self.tokens_of(0, at) * self.dtype.itemsize
        found = f"byte {int(self.pointers[at]):,} instead of {expected:,}"
        raise corrupt(self.prefix, f"sequence {at:,} starts at {found}")


def write_pair(prefix: str | Path, tokens: NDArray[np.integer], lengths: NDArray[np.int32]) -> None:
    """Write a pair of documents at once: their tokens end to end, and the length of each. Not crash-safe."""
    bin_path(prefix).write_bytes(tokens.astype(tokens.dtype.newbyteorder("<")).tobytes())
    idx_path(prefix).write_bytes(b"".join(index_bytes(lengths, tokens.dtype)))


def index_bytes(lengths: NDArray[np.int32], dtype: np.dtype[np.integer]) -> Iterator[bytes]:
    """Yield the `.idx` of documents that are one sequence each, in pieces."""
    count = len(lengths)
    yield header_bytes(dtype.name, count, count + 1)
    yield np.asarray(lengths, "<i4").tobytes()
    yield _pointers(lengths, dtype.itemsize).tobytes()
    yield np.arange(count + 1, dtype="<i8").tobytes()


def _pointers(lengths: NDArray[np.int32], token_bytes: int) -> NDArray[np.int64]:
    """Return the first byte of each sequence when they are stored end to end."""
    ends = np.cumsum(lengths, dtype="<i8")
    ends -= lengths
    ends *= token_bytes
    return ends


def _mapped(path: Path) -> NDArray[np.uint8]:
    """Map the file's bytes. An empty file cannot be mapped."""
    if path.stat().st_size == 0:
        return np.zeros(0, np.uint8)
    # As a plain array: slicing np.memmap costs ten times more.
    return np.asarray(np.memmap(path, np.uint8, "r"))
