r"""Megatron's `.bin/.idx` pair: tokens without a header, and the start of each sequence.

`.idx`, little endian: 9 bytes `MMIDIDX\0\0` | u64 version 1 | u8 dtype code | u64 sequences N | u64 document entries D
| N x int32 lengths in tokens | N x int64 byte offsets into the `.bin` | D x int64 first sequence of each document,
then N.

A pair is written to temporary names and renamed, the `.idx` last: an existing `.idx` describes a whole `.bin`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from trainer.core.files import be_as_open_as_its_folder, create_file
from trainer.data import compiled
from trainer.formats.data.index_header import bin_path, corrupt, header_bytes, idx_path, read_header
from trainer.formats.errors import DataError

#: Smaller vocabularies are stored in 16 bits; Megatron's own bound.
UINT16_VOCAB_LIMIT = 65_500


def token_dtype(vocab_size: int) -> np.dtype[np.integer]:
    """Return the stored type for ids of a vocabulary: uint16 below 65,500, else int32."""
    return np.dtype("<u2" if vocab_size < UINT16_VOCAB_LIMIT else "<i4")


class IndexedTokens:
    """A `.bin/.idx` pair, mapped into memory. Opening it checks the header and the sizes of both files.

    lengths: [N] int32, tokens of each sequence. pointers: [N] int64, its first byte in the `.bin`. tokens: [T], all of
    them. index: a copy of the `.idx`, to map instead of it. Raises DataError for missing, truncated or foreign files.
    """

    def __init__(self, prefix: str | Path, index: Path | None = None):
        self.prefix = str(prefix)
        header = self.header = read_header(prefix)
        raw = _mapped(index or idx_path(prefix))
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
        if not len(entries) or entries[0] != 0 or entries[-1] != len(self) or not _ascends(entries):
            raise corrupt(self.prefix, f"its document entries do not run from 0 to {len(self):,}")
        at = _first_wrong(self.lengths, self.pointers, self.dtype.itemsize)
        if at == len(self):
            return
        if self.lengths[at] < 0:
            raise corrupt(self.prefix, f"sequence {at:,} has length {int(self.lengths[at]):,}")
        expected = self.tokens_of(0, at) * self.dtype.itemsize
        found = f"byte {int(self.pointers[at]):,} instead of {expected:,}"
        raise corrupt(self.prefix, f"sequence {at:,} starts at {found}")


def _ascends(entries: NDArray[np.int64]) -> bool:
    library = compiled.library()
    if library is None:
        return not bool(np.any(entries[1:] < entries[:-1]))
    return bool(library.entries_ascend(compiled.address(entries), len(entries)))


def _first_wrong(lengths: NDArray[np.int32], pointers: NDArray[np.int64], token_bytes: int) -> int:
    """Return the first sequence with a negative length or a gap before it; the number of sequences if all are valid."""
    library = compiled.library()
    if library is not None:
        places = compiled.address(lengths), compiled.address(pointers)
        return int(library.first_wrong_sequence(*places, len(lengths), token_bytes))
    wrong = np.flatnonzero((lengths < 0) | (pointers != _pointers(lengths, token_bytes)))
    return int(wrong[0]) if len(wrong) else len(lengths)


class IndexedWriter:
    """A writer of a pair, one sequence per document, with Megatron's bytes.

    Use it as a context manager and call `place` at the end. Leaving it without `place`, also by an exception, removes
    the unfinished files. A second writer on the same prefix is refused while the first exists.
    """

    def __init__(self, prefix: str | Path, dtype: np.dtype[np.integer]):
        self.prefix = str(prefix)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self._lengths: list[NDArray[np.int32]] = []
        self._begun = [Path(f"{bin_path(prefix)}.partial"), Path(f"{idx_path(prefix)}.partial")]

    def __enter__(self) -> IndexedWriter:
        # Do not truncate before the lock is held: the file may be another writer's.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._begun[0], flags, 0o666), "ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise DataError(
                f"another process is writing {self._begun[0]}; wait for it or choose another prefix"
            ) from None
        if not self._is_at(self._begun[0]):
            self._file.close()
            raise DataError(f"another process has just written {self.prefix}; check it, and try again")
        try:
            self._begin()
            be_as_open_as_its_folder(self._begun[0])
        except KeyboardInterrupt:  # `with` calls no `__exit__` if `__enter__` raises
            self.__exit__(None, None, None)
            raise
        return self

    def _begin(self) -> None:
        """Truncate the leftovers of an earlier writer, with the lock held."""
        self._file.truncate(0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a rename, its temporary names belong to the next writer.
        if self._is_at(self._begun[0]):
            for path in self._begun:
                with contextlib.suppress(OSError):
                    path.unlink()
        with contextlib.suppress(OSError):
            self._file.close()

    def _is_at(self, path: Path) -> bool:
        """Return True if the locked file still has this name."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._file.fileno()), path.lstat())
        return False

    def add(self, tokens: NDArray[np.integer], lengths: NDArray[np.int32]) -> None:
        """Append documents: their tokens end to end, and the length of each."""
        if int(lengths.sum(dtype=np.int64)) != tokens.size:
            raise ValueError(f"lengths add up to {int(lengths.sum(dtype=np.int64))}, tokens are {tokens.size}")
        self._file.write(np.ascontiguousarray(tokens, dtype=self.dtype).data)
        self._lengths.append(np.asarray(lengths, np.int32))

    def place(self, others: Callable[[], None] = lambda: None) -> None:
        """Put the pair in place: sync all bytes, remove the old `.idx`, and rename, the new `.idx` last.

        `others` puts files that belong to the pair in place while there is no `.idx`.
        """
        lengths = np.concatenate([np.zeros(0, np.int32), *self._lengths])
        self._begun[1].unlink(missing_ok=True)
        with os.fdopen(create_file(self._begun[1]), "wb") as index:
            index.writelines(index_bytes(lengths, self.dtype))
            index.flush()
            os.fsync(index.fileno())
        self._file.flush()
        os.fsync(self._file.fileno())
        idx_path(self.prefix).unlink(missing_ok=True)
        others()
        self._begun[0].replace(bin_path(self.prefix))
        self._begun[1].replace(idx_path(self.prefix))
        folder = os.open(idx_path(self.prefix).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


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
