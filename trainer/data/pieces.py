"""Pieces of the input: the division of each kind of source into them, and the documents in each."""

from __future__ import annotations

import functools
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec

from trainer.formats.distribution import install_command
from trainer.formats.errors import DataError

#: A piece ends after a whole line, row or file with at least this many bytes.
PIECE_BYTES = 2 << 20
#: Reading a file costs as much as this many bytes of text, however small it is.
_BYTES_A_FILE = 4096
_ROWS_AT_ONCE = 1024
_BLOCK_BYTES = 1 << 20
#: Read at a time. The decompressed bytes are in memory together, and may be a thousand times as many.
_PACKED_BYTES = 1 << 16

#: The number of documents left out, by reason: `empty`, `not_text` (not UTF-8, or with NUL bytes), `unreadable`.
Skipped = Counter[str]


class FileFacts(NamedTuple):
    """Facts about a file that change when it changes."""

    path: str
    size_bytes: int
    changed_ns: int


class Piece(Protocol):
    """The interface of every piece, in any process."""

    def texts(self, skipped: Skipped) -> list[str]:
        """Return the documents, none of them empty. Skipped ones are counted in `skipped`. Raises DataError."""


def shown(path: str | bytes | os.PathLike[str]) -> str:
    """Return a path for one line of a terminal, whatever bytes its name has."""
    text = os.fsdecode(path)
    return text if text.isprintable() else ascii(text)


@dataclass(frozen=True)
class LinesOfFile:
    """The lines of a plain file that begin in [start, end)."""

    path: str
    key: str
    start: int
    end: int

    def texts(self, skipped: Skipped) -> list[str]:
        """See `Piece`."""
        try:
            raw, first = self._raw()
            return texts_of_lines(raw, self.key, self.path, lambda: self._lines_before(first), skipped)
        except OSError as error:
            raise DataError(f"cannot read {shown(self.path)}: {error.strerror}") from None

    def _raw(self) -> tuple[bytes, int]:
        """Return the lines' bytes, and the position of the first."""
        with open(self.path, "rb") as file:  # noqa: PTH123 -- a name may be any bytes
            if os.fstat(file.fileno()).st_size < self.end:
                raise DataError(f"{shown(self.path)} was truncated while it was read")
            if self.start:
                file.seek(self.start - 1)
                while (block := file.readline(_BLOCK_BYTES)) and not block.endswith(b"\n") and file.tell() < self.end:
                    pass
                if not block.endswith(b"\n"):
                    return b"", self.end
            first = file.tell()
            raw = file.read(max(0, self.end - first))
            return (raw if raw.endswith(b"\n") or not raw else raw + file.readline()), first

    def _lines_before(self, first: int) -> int:
        count = 0
        with open(self.path, "rb") as file:  # noqa: PTH123
            while first > 0 and (block := file.read(min(first, _BLOCK_BYTES))):
                count += block.count(b"\n")
                first -= len(block)
        return count


@dataclass(frozen=True)
class LinesRead:
    """Whole lines of a file. lines_before: those of the file before them."""

    path: str
    key: str
    raw: bytes
    lines_before: int

    def texts(self, skipped: Skipped) -> list[str]:
        """See `Piece`."""
        return texts_of_lines(self.raw, self.key, self.path, lambda: self.lines_before, skipped)


@dataclass(frozen=True)
class RowsRead:
    """Rows of a table's column. A null is an empty document."""

    rows: list[str | None]

    def texts(self, skipped: Skipped) -> list[str]:
        """See `Piece`."""
        found = [text for text in self.rows if text]
        skipped["empty"] += len(self.rows) - len(found)
        return found


@dataclass(frozen=True)
class FilesOfFolder:
    """Files of a folder, by their relative paths. Each is a document."""

    root: str
    names: list[str]

    def texts(self, skipped: Skipped) -> list[str]:
        """See `Piece`."""
        found = []
        for name in self.names:
            try:
                with open(os.path.join(self.root, name), "rb") as file:  # noqa: PTH118, PTH123
                    text = file.read().decode("utf-8-sig")
            except OSError:
                skipped["unreadable"] += 1
                continue
            except UnicodeDecodeError:
                text = "\0"
            if text and "\0" not in text:
                found.append(text)
            else:
                skipped["not_text" if text else "empty"] += 1
        return found


#: (piece, bytes of the source read at its end)
Cut = Iterator[tuple[Piece, int]]


def plain_lines(path: str, files: Sequence[FileFacts], key: str) -> Cut:
    """Divide a file of JSON-lines. The pieces read it."""
    size = files[0].size_bytes
    for start in range(0, size, PIECE_BYTES):
        end = min(size, start + PIECE_BYTES)
        yield LinesOfFile(path, key, start, end), end


def gzip_lines(path: str, _files: Sequence[FileFacts], key: str) -> Cut:
    """Divide a file of JSON-lines in gzip."""
    return _packed_lines(path, key, "gzip", lambda: zlib.decompressobj(wbits=31), zlib.error)


def zstd_lines(path: str, _files: Sequence[FileFacts], key: str) -> Cut:
    """Divide a file of JSON-lines in zstd."""
    try:
        from zstandard import ZstdDecompressor, ZstdError
    except ImportError:
        raise DataError(
            f"{shown(path)} is compressed with zstd, and zstandard is not installed: {install_command('data')}"
        ) from None
    # The largest possible window, as with `zstd --long=31`.
    packed = ZstdDecompressor(max_window_size=1 << 31)
    return _packed_lines(path, key, "zstd", packed.decompressobj, ZstdError)


def _packed_lines(path: str, key: str, kind: str, new: Callable[[], Any], damaged: type[Exception]) -> Cut:
    lines, read, size = 0, 0, 0
    waiting: list[bytes] = []
    try:
        for unpacked, read in _unpacked(path, new):
            waiting.append(unpacked)
            size += len(unpacked)
            end = unpacked.rfind(b"\n") + 1
            if size >= PIECE_BYTES and end:
                waiting[-1] = unpacked[:end]
                piece = LinesRead(path, key, b"".join(waiting), lines)
                yield piece, read
                lines += piece.raw.count(b"\n")
                waiting, size = [unpacked[end:]], len(unpacked) - end
    except (EOFError, damaged) as error:
        lines += sum(one.count(b"\n") for one in waiting)
        raise DataError(f"{shown(path)} is truncated or not a {kind} file after line {lines:,}: {error}") from None
    except OSError as error:
        raise DataError(f"cannot read {shown(path)}: {error.strerror}") from None
    if size:
        yield LinesRead(path, key, b"".join(waiting), lines), read


def _unpacked(path: str, new: Callable[[], Any]) -> Iterator[tuple[bytes, int]]:
    """Yield (next bytes, bytes read so far). A file may be several streams, with zeros between them."""
    one = None
    with open(path, "rb") as file:  # noqa: PTH123
        while block := file.read(_PACKED_BYTES):
            while block:
                if one is None:
                    block = block if file.tell() == len(block) else block.lstrip(b"\0")
                    if not block:
                        break
                    one = new()
                yield one.decompress(block), file.tell()
                block, one = (one.unused_data, None) if one.eof else (b"", one)
    if one is not None:
        raise EOFError("the stream has no end")


def parquet_rows(path: str, files: Sequence[FileFacts], key: str) -> Cut:
    """Divide a Parquet file, whose column `key` has the texts. The bytes read are estimated by the rows."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(f"{shown(path)} needs pyarrow, which is not installed: {install_command('data')}") from None
    done, size = 0, 0
    waiting: list[str | None] = []
    try:
        with open(path, "rb") as raw:  # noqa: PTH123
            table = ParquetFile(raw)
            _refuse_other_column(table.schema_arrow, key, shown(path))
            for batch in table.iter_batches(_ROWS_AT_ONCE, columns=[key], use_threads=False):
                waiting += batch.column(0).to_pylist()
                size += int(batch.nbytes)
                done += len(batch)
                if size >= PIECE_BYTES:
                    yield RowsRead(waiting), files[0].size_bytes * done // table.metadata.num_rows
                    waiting, size = [], 0
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{shown(path)} is damaged, truncated or not UTF-8 after row {done:,}: {reason}") from None
    if waiting:
        yield RowsRead(waiting), files[0].size_bytes


def _refuse_other_column(schema: Any, key: str, where: str) -> None:
    if key not in schema.names:
        found = ", ".join(schema.names[:8]) or "none"
        raise DataError(f"{where}: no column {key!r}, found {found}; choose one with --json-key")
    held = str(schema.field(key).type)
    if held not in ("string", "large_string", "string_view"):
        raise DataError(f"{where}: column {key!r} has {held} instead of text; choose another with --json-key")


def documents(path: str, files: Sequence[FileFacts], _key: str) -> Cut:
    """Divide the folder `path`, whose `files` are the documents."""
    names: list[str] = []
    read = weight = 0
    for number, file in enumerate(files, 1):
        names.append(file.path)
        read += file.size_bytes
        weight += file.size_bytes + _BYTES_A_FILE
        if weight >= PIECE_BYTES or number == len(files):
            yield FilesOfFolder(path, names), read
            names, weight = [], 0


def texts_of_lines(raw: bytes, key: str, path: str, lines_before: Callable[[], int], skipped: Skipped) -> list[str]:
    """Return the texts of whole lines. lines_before: counts the earlier lines of the file, for errors."""
    decode, texts = _decoder(key), []
    for index, line in enumerate(raw.split(b"\n")):
        if not line or line.isspace():
            continue
        try:
            text = decode(line).text
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # Unusual or invalid JSON.
            text = _text(line, lines_before() + index + 1, key, path)
        if text:
            texts.append(text)
        else:
            skipped["empty"] += 1
    return texts


@functools.cache
def _decoder(key: str) -> Callable[[bytes], Any]:
    """Return a decoder of objects with a text under `key`. It ignores other keys and raises for anything unusual."""
    try:
        line = msgspec.defstruct("Line", [("text", str, msgspec.field(name=key))], gc=False)
    except ValueError:  # msgspec has no name for this key
        return msgspec.json.Decoder(int).decode
    return msgspec.json.Decoder(line).decode


def _text(line: bytes, number: int, key: str, path: str) -> str:
    where = f"{shown(path)}, line {number:,}"
    try:
        value: Any = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 at byte {error.start + 1}; convert the file (iconv -t utf-8)") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{where}: not a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{where}: {type(value).__name__} instead of an object with the text under {key!r}")
    if key not in value:
        keys = ", ".join(sorted(value)[:8]) or "nothing"
        raise DataError(f"{where}: no key {key!r}, found {keys}; choose one with --json-key")
    text = value[key]
    if not isinstance(text, str):
        kind = "null" if text is None else type(text).__name__
        raise DataError(f"{where}: {key!r} has {kind} instead of text")
    # JSON can contain an unpaired surrogate, but it is not text.
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
