"""Megatron's `.bin/.idx` pair: tokens without a header, and beside them where each sequence starts.

`.idx`, little endian: 9 bytes `MMIDIDX\\0\\0` | u64 version 1 | u8 dtype code | u64 sequences N | u64 document entries D
| N x int32 lengths in tokens | N x int64 byte offsets into the `.bin` | D x int64 first sequence of each document, then N.
A pair is written beside its place and renamed, the `.idx` last: an `.idx` that exists describes a whole `.bin`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from trainer.data.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER_BYTES = 34
#: dtype code -> numpy's type
DTYPES: dict[int, type[np.generic]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float64,
    7: np.float32,
    8: np.uint16,
}
#: A vocabulary below this is stored in 16 bits; Megatron's own bound.
UINT16_VOCAB_LIMIT = 65_500


def token_dtype(vocab_size: int) -> type[np.generic]:
    """The stored type for ids of a vocabulary: uint16 below 65,500, else int32."""
    return np.uint16 if vocab_size < UINT16_VOCAB_LIMIT else np.int32


def bin_path(prefix: str | Path) -> Path:
    """`PREFIX.bin`; a dot inside the prefix stays."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """`PREFIX.idx`."""
    return Path(f"{prefix}.idx")


class IndexedTokens:
    """A `.bin/.idx` pair, mapped into memory and checked.

    lengths: [N] int32 tokens of each sequence. offsets: [N] int64 first token of each sequence in `tokens`, counted in tokens.
    tokens: every token, [T], of the stored type. Raises DataError for anything missing, cut short or foreign.
    """

    def __init__(self, prefix: str | Path, thorough: bool = True):
        """`thorough` also reads every length and offset (20 bytes a sequence); without it only the ends are looked at."""
        self.prefix = str(prefix)
        self._idx, self._bin = idx_path(prefix), bin_path(prefix)
        for path, other in ((self._idx, self._bin), (self._bin, self._idx)):
            if not path.is_file():
                raise DataError(_missing(path, other))
        raw = _mapped(self._idx)
        self.dtype, sequences, documents = self._read_header(raw)
        lengths_end = HEADER_BYTES + 4 * sequences
        pointers_end = lengths_end + 8 * sequences
        self.lengths: NDArray[np.int32] = raw[HEADER_BYTES:lengths_end].view("<i4")
        self.pointers: NDArray[np.int64] = raw[lengths_end:pointers_end].view("<i8")
        self.document_indices: NDArray[np.int64] = raw[pointers_end : pointers_end + 8 * documents].view("<i8")
        self.tokens: NDArray[np.generic] = self._map_tokens()
        if thorough:
            self.check_every_entry()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, sequence: int) -> NDArray[np.generic]:
        """The tokens of one sequence, a view."""
        return self.part(sequence, 0, int(self.lengths[sequence]))

    def part(self, sequence: int, start: int, stop: int) -> NDArray[np.generic]:
        """Tokens [start, stop) of one sequence, a view into the mapped file."""
        first = int(self.pointers[sequence]) // self.tokens.itemsize
        return self.tokens[first + start : first + stop]

    def _read_header(self, raw: NDArray[np.uint8]) -> tuple[np.dtype[np.generic], int, int]:
        found = raw.size
        if found < HEADER_BYTES:
            raise self._corrupt(f"{found} bytes, but the header alone has {HEADER_BYTES}")
        head = raw[:HEADER_BYTES].tobytes()
        if head[:9] != MAGIC:
            raise self._corrupt(f"it starts with {head[:9]!r}, not {MAGIC!r}")
        version, code, sequences, documents = struct.unpack("<QBQQ", head[9:])
        if version != VERSION:
            raise self._corrupt(f"version {version}, only {VERSION} is known")
        if code not in DTYPES or not np.issubdtype(DTYPES[code], np.integer):
            raise self._corrupt(f"dtype code {code}; token ids are 1, 2, 3, 4, 5 or 8")
        needed = HEADER_BYTES + 12 * sequences + 8 * documents
        # One byte more per sequence is the mode that multimodal data carries.
        if found not in (needed, needed + sequences):
            raise self._corrupt(
                f"{found:,} bytes, but {sequences:,} sequences and {documents:,} document entries take {needed:,}"
            )
        return np.dtype(DTYPES[code]).newbyteorder("<"), sequences, documents

    def _map_tokens(self) -> NDArray[np.generic]:
        size = self._bin.stat().st_size
        item = self.dtype.itemsize
        end = int(self.pointers[-1]) + int(self.lengths[-1]) * item if len(self.lengths) else 0
        if size != end:
            raise DataError(
                f"{self._bin}: {size:,} bytes, but its index {self._idx.name} ends at {end:,}: one of the two is cut short or from "
                "another run; copy both again or prepare them again (opsctl data prepare)"
            )
        return _mapped(self._bin).view(self.dtype)

    def check_every_entry(self) -> None:
        """Read all lengths and offsets. Raises DataError for one that cannot be."""
        if not len(self.lengths):
            return
        if int(self.lengths.min()) < 0:
            raise self._corrupt(f"sequence {int(self.lengths.argmin()):,} has length {int(self.lengths.min())}")
        expected = np.zeros(len(self.lengths), np.int64)
        np.cumsum(self.lengths[:-1], dtype=np.int64, out=expected[1:])
        expected *= self.dtype.itemsize
        wrong = np.flatnonzero(self.pointers != expected)
        if len(wrong):
            at = int(wrong[0])
            raise self._corrupt(
                f"sequence {at:,} points at byte {int(self.pointers[at]):,} instead of {int(expected[at]):,}"
            )
        entries = self.document_indices
        if (
            not len(entries)
            or entries[0] != 0
            or entries[-1] != len(self.lengths)
            or bool(np.any(np.diff(entries) < 0))
        ):
            raise self._corrupt(f"its document entries do not run from 0 to {len(self.lengths):,}")

    def _corrupt(self, what: str) -> DataError:
        return DataError(
            f"{self._idx} is no usable index: {what}; copy it again or prepare the data again (opsctl data prepare)"
        )


class IndexedWriter:
    """Writes a pair, one sequence per document, with Megatron's bytes.

    Use as a context manager: leaving normally puts the pair in place (the old `.idx` goes first, the new one comes last), leaving
    with an exception removes what was begun. A second writer on the same prefix is refused while the first lives.
    """

    def __init__(self, prefix: str | Path, dtype: type[np.generic]):
        self.prefix = str(prefix)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self._lengths: list[NDArray[np.int32]] = []
        self._begun = [Path(f"{bin_path(prefix)}.partial"), Path(f"{idx_path(prefix)}.partial")]

    def __enter__(self) -> IndexedWriter:
        # Not truncated before the lock is held: it may be another writer's.
        self._file = open(self._begun[0], "ab")  # noqa: SIM115, PTH123
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise DataError(
                f"somebody else is writing {self._begun[0]}; wait for it or choose another prefix"
            ) from None
        self._file.truncate(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            for path in self._begun:
                with contextlib.suppress(OSError):
                    path.unlink()
            with contextlib.suppress(OSError):
                self._file.close()

    def add(self, tokens: NDArray[np.generic], lengths: NDArray[np.int32]) -> None:
        """Append documents: their tokens in one piece, and how many each has."""
        if int(lengths.sum(dtype=np.int64)) != tokens.size:
            raise ValueError(f"lengths add up to {int(lengths.sum(dtype=np.int64))}, tokens are {tokens.size}")
        self._file.write(np.ascontiguousarray(tokens, dtype=self.dtype).data)
        self._lengths.append(np.asarray(lengths, np.int32))

    def _finish(self) -> None:
        lengths = np.concatenate([np.zeros(0, np.int32), *self._lengths])
        with open(self._begun[1], "wb") as index:  # noqa: PTH123
            index.writelines(index_bytes(lengths, self.dtype))
            index.flush()
            os.fsync(index.fileno())
        self._file.flush()
        os.fsync(self._file.fileno())
        with contextlib.suppress(FileNotFoundError):
            idx_path(self.prefix).unlink()
        self._begun[0].replace(bin_path(self.prefix))
        self._begun[1].replace(idx_path(self.prefix))
        folder = os.open(idx_path(self.prefix).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def index_bytes(lengths: NDArray[np.int32], dtype: np.dtype[np.generic]) -> Iterator[bytes]:
    """The `.idx` of documents that are one sequence each, in pieces."""
    code = next(code for code, known in DTYPES.items() if np.dtype(known) == dtype)
    count = len(lengths)
    yield MAGIC + struct.pack("<QBQQ", VERSION, code, count, count + 1)
    yield np.asarray(lengths, "<i4").tobytes()
    pointers = np.zeros(count + 1, "<i8")
    np.cumsum(lengths, dtype=np.int64, out=pointers[1:])
    pointers *= dtype.itemsize
    yield pointers[:count].tobytes()
    yield np.arange(count + 1, dtype="<i8").tobytes()


def _mapped(path: Path) -> NDArray[np.uint8]:
    """The file's bytes without reading them. An empty file cannot be mapped."""
    if path.stat().st_size == 0:
        return np.zeros(0, np.uint8)
    # As a plain array: slicing np.memmap costs ten times more.
    return np.asarray(np.memmap(path, np.uint8, "r"))


def _missing(path: Path, other: Path) -> str:
    if other.is_file():
        return f"{path} is missing although {other.name} is there; prepare the data again or copy the whole pair"
    folder = path.parent
    near = sorted(found.stem for found in folder.glob("*.idx"))[:3] if folder.is_dir() else []
    hint = f"; {folder} has {', '.join(near)}" if near else ""
    return f"no data at {str(path)[:-4]} (.bin and .idx expected){hint}; give the prefix without the ending, or make it with opsctl data prepare"
