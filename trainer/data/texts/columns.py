"""Tables with a document per row of a column: Parquet files, and the Arrow files that `datasets` writes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainer.data.texts.piece import PIECE_BYTES, FileFacts, Skipped, shown
from trainer.formats.distribution import install_command
from trainer.formats.errors import DataError

#: The first bytes of files of each kind. `datasets` writes `stream`.
MAGIC = {"parquet": b"PAR1", "arrow": b"ARROW1\0\0", "stream": b"\xff\xff\xff\xff"}
_ROWS_AT_ONCE = 1024
#: Bytes counted per row besides its text, so that a piece ends even if all its documents are empty.
_BYTES_A_ROW = 8


class RowsRead(msgspec.Struct, frozen=True, tag=True):
    """Rows of a file. raw: UTF-8, concatenated. lengths: int64, bytes of each."""

    path: bytes
    rows_before: int
    raw: bytes
    lengths: bytes

    def texts(self, skipped: Skipped) -> list[str]:
        """See `piece.Readable`. An empty row is an empty document."""
        texts, start = [], 0
        for row, length in enumerate(np.frombuffer(self.lengths, np.int64).tolist(), self.rows_before + 1):
            try:
                text = self.raw[start : start + length].decode()
            except UnicodeDecodeError as error:
                where = f"{shown(self.path)}, row {row:,}"
                raise DataError(f"{where}: not UTF-8 at byte {error.start + 1}; write the file again") from None
            start += length
            if text:
                texts.append(text)
            else:
                skipped.empty += 1
        return texts


@dataclass(frozen=True)
class Table:
    """The column `key` of a file. kind: a name of MAGIC."""

    path: str
    key: str
    kind: str
    files: tuple[FileFacts, ...]

    @property
    def total_bytes(self) -> int:
        """The bytes to read, other columns included."""
        return self.files[0].size_bytes

    def pieces(self) -> Iterator[tuple[RowsRead, int]]:
        """Yield (piece, bytes read at its end, estimated by its share of the rows).

        Raises DataError for a damaged file, a missing column, and without pyarrow.
        """
        path, before, weight = os.fsencode(self.path), 0, 0
        raw: list[memoryview] = []
        lengths: list[NDArray[np.int64]] = []
        for share, values, of_rows in _columns(self):
            while len(of_rows):
                # Up to the row with which there is enough, independent of the file's own batches.
                weights = np.cumsum(of_rows + _BYTES_A_ROW)
                rows = min(len(of_rows), int(np.searchsorted(weights, PIECE_BYTES - weight)) + 1)
                size = int(of_rows[:rows].sum())
                weight += int(weights[rows - 1])
                raw.append(values[:size])
                lengths.append(of_rows[:rows])
                values, of_rows = values[size:], of_rows[rows:]
                if weight >= PIECE_BYTES:
                    piece = _rows(path, before, raw, lengths)
                    yield piece, int(share * self.total_bytes)
                    before += len(piece.lengths) // 8
                    raw, lengths, weight = [], [], 0
        if lengths:
            yield _rows(path, before, raw, lengths), self.total_bytes


def _rows(path: bytes, before: int, raw: list[memoryview], lengths: list[NDArray[np.int64]]) -> RowsRead:
    return RowsRead(path, before, b"".join(raw), np.concatenate(lengths).tobytes())


def _columns(table: Table) -> Iterator[tuple[float, memoryview, NDArray[np.int64]]]:
    """Yield per batch the share of the file read so far, the rows' bytes, and the length of each."""
    where = shown(table.path)
    try:
        import pyarrow
    except ImportError:
        raise DataError(f"{where} needs pyarrow, which is not installed: {install_command('data')}") from None
    rows = 0
    try:
        with open(table.path, "rb") as file:  # noqa: PTH123
            # Closed when the last view of it is gone: the returned bytes are inside it.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            for share, column in _of_kind(pyarrow.py_buffer(mapped), table.kind, table.key, where):
                values, lengths = _bytes_of(column)
                rows += len(lengths)
                yield share, values, lengths
    except pyarrow.ArrowException as error:
        said = str(error).splitlines()[0]
        raise DataError(f"{where} is damaged or truncated after row {rows:,}: {said}") from None
    except OSError as error:  # pyarrow's own errors have no number
        reason = error.strerror or str(error).splitlines()[0]
        raise DataError(f"cannot read {where} after row {rows:,}: {reason}") from None


def _of_kind(whole: Any, kind: str, key: str, where: str) -> Iterator[tuple[float, Any]]:
    """Yield (share of the file, the column's values) for each batch."""
    from pyarrow import BufferReader, ipc

    if kind == "parquet":
        from pyarrow.parquet import ParquetFile

        file = ParquetFile(BufferReader(whole))
        _refuse_other_column(file.schema_arrow, key, where)
        done, rows = 0, max(1, file.metadata.num_rows)
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[key], use_threads=False):
            done += len(batch)
            yield done / rows, batch.column(0)
    elif kind == "arrow":
        reader = ipc.open_file(BufferReader(whole))
        _refuse_other_column(reader.schema, key, where)
        for number in range(reader.num_record_batches):
            yield (number + 1) / reader.num_record_batches, reader.get_batch(number).column(key)
    else:
        source = BufferReader(whole)
        stream = ipc.open_stream(source)
        _refuse_other_column(stream.schema, key, where)
        for batch in stream:
            yield source.tell() / len(whole), batch.column(key)


def _refuse_other_column(schema: Any, key: str, where: str) -> None:
    import pyarrow

    if key not in schema.names:
        found = ", ".join(schema.names[:8]) or "none"
        raise DataError(f"{where}: no column {key!r}, found {found}; choose one with --json-key")
    held = schema.field(key).type
    if pyarrow.types.is_dictionary(held):
        held = held.value_type
    if str(held) not in ("string", "large_string", "string_view", "null"):
        raise DataError(f"{where}: column {key!r} has {held} instead of text; choose another with --json-key")


def _bytes_of(column: Any) -> tuple[memoryview, NDArray[np.int64]]:
    """Return the values' bytes, concatenated, and the length of each. A null has length 0."""
    import pyarrow

    texts = column.cast(pyarrow.large_string()).fill_null("")
    _, offsets, data = texts.buffers()
    if not len(texts):
        return memoryview(b""), np.zeros(0, np.int64)
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    values = memoryview(data)[int(ends[0]) : int(ends[-1])] if data is not None else memoryview(b"")
    return values, np.diff(ends)
