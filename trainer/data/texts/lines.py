"""Data files of lines: plain or compressed."""

from __future__ import annotations

import functools
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from trainer.data.texts.piece import PIECE_BYTES, FileFacts, Skipped, shown
from trainer.formats.distribution import install_command
from trainer.formats.errors import DataError

_BLOCK_BYTES = 1 << 20


class LinesOfFile(msgspec.Struct, frozen=True, tag=True):
    """The lines of a plain file that begin in [start, end)."""

    path: bytes
    start: int
    end: int
    key: str

    def texts(self, skipped: Skipped) -> list[str]:
        """See `piece.Readable`."""
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
                block = b""
                while file.tell() < self.end and not block.endswith(b"\n"):
                    block = file.readline(_BLOCK_BYTES)
                    if not block:
                        break
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
class PlainLines:
    """A file that is not compressed."""

    path: str
    key: str
    files: tuple[FileFacts, ...]

    @property
    def total_bytes(self) -> int:
        """The bytes to read."""
        return self.files[0].size_bytes

    def pieces(self) -> Iterator[tuple[LinesOfFile, int]]:
        """Yield (piece, bytes read at its end)."""
        path = os.fsencode(self.path)
        for start in range(0, self.total_bytes, PIECE_BYTES):
            end = min(self.total_bytes, start + PIECE_BYTES)
            yield LinesOfFile(path, start, end, self.key), end


def texts_of_lines(raw: bytes, key: str, path: bytes, lines_before: Callable[[], int], skipped: Skipped) -> list[str]:
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
            skipped.empty += 1
    return texts


@functools.cache
def _decoder(key: str) -> Callable[[bytes], Any]:
    """Return a decoder of objects with a text under `key`. It ignores other keys and raises for anything unusual."""
    try:
        line = msgspec.defstruct("Line", [("text", str, msgspec.field(name=key))], gc=False)
    except ValueError:
        return _refuse  # msgspec has no name for this key
    return msgspec.json.Decoder(line).decode


def _refuse(_line: bytes) -> NoReturn:
    raise ValueError


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _text(line: bytes, number: int, key: str, path: bytes) -> str:
    where = f"{shown(path)}, line {number:,}"
    try:
        value: Any = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 at byte {error.start + 1}; convert the file (iconv -t utf-8)") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{where}: not a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{where}: {_kind(value)} instead of an object with the text under {key!r}")
    if key not in value:
        keys = ", ".join(sorted(value)[:8]) or "nothing"
        raise DataError(f"{where}: no key {key!r}, found {keys}; choose one with --json-key")
    text = value[key]
    if not isinstance(text, str):
        raise DataError(f"{where}: {key!r} has {_kind(text)} instead of text")
    # JSON can contain an unpaired surrogate, but it is not text.
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
#: Read at a time. The decompressed bytes are in memory together, and may be a thousand times as many.
_UNPACKED_BYTES = 1 << 16


class LinesRead(msgspec.Struct, frozen=True, tag=True):
    """Whole lines of a file. lines_before: those of the file before them."""

    path: bytes
    lines_before: int
    raw: bytes
    key: str

    def texts(self, skipped: Skipped) -> list[str]:
        """See `piece.Readable`."""
        return texts_of_lines(self.raw, self.key, self.path, lambda: self.lines_before, skipped)


@dataclass(frozen=True)
class CompressedLines:
    """A compressed file. kind: `gzip` or `zstd`."""

    path: str
    key: str
    kind: str
    files: tuple[FileFacts, ...]

    @property
    def total_bytes(self) -> int:
        """The compressed bytes to read."""
        return self.files[0].size_bytes

    def pieces(self) -> Iterator[tuple[LinesRead, int]]:
        """Yield (piece, compressed bytes read at its end). Raises DataError for a truncated or damaged stream."""
        path, lines, waiting, read, searched = os.fsencode(self.path), 0, bytearray(), 0, 0
        try:
            for unpacked, read in _unpacked(self.path, _unpackers(self.kind, self.path)):
                waiting += unpacked
                while (end := waiting.find(b"\n", max(PIECE_BYTES - 1, searched)) + 1) > 0:
                    raw = bytes(waiting[:end])
                    del waiting[:end]
                    searched = 0
                    yield LinesRead(path, lines, raw, self.key), read
                    lines += raw.count(b"\n")
                searched = len(waiting)
        except _Damaged as error:
            lines += waiting.count(b"\n")
            raise DataError(
                f"{shown(path)} is truncated or not a {self.kind} file after line {lines:,}: {error}"
            ) from None
        except OSError as error:
            raise DataError(f"cannot read {shown(path)}: {error.strerror}") from None
        if waiting:
            yield LinesRead(path, lines, bytes(waiting), self.key), read


class _Damaged(Exception):
    """A stream that cannot be decompressed."""


def _unpacked(path: str, new: Callable[[], Any]) -> Iterator[tuple[bytes, int]]:
    """Yield (next bytes, bytes read so far). A file may be several streams, with zeros between them."""
    read, one, errors = 0, None, _errors()
    with open(path, "rb") as file:  # noqa: PTH123
        while block := file.read(_UNPACKED_BYTES):
            read += len(block)
            while block:
                if one is None:
                    block = block.lstrip(b"\0") if read > len(block) else block
                    if not block:
                        break
                    one = new()
                try:
                    yield one.decompress(block), read
                except errors as error:
                    raise _Damaged(str(error)) from None
                block = one.unused_data if one.eof else b""
                one = None if one.eof else one
    if one is not None:
        raise _Damaged("the stream has no end")


def _errors() -> tuple[type[Exception], ...]:
    try:
        from zstandard import ZstdError
    except ImportError:
        return (zlib.error,)
    return (zlib.error, ZstdError)


def _unpackers(kind: str, path: str) -> Callable[[], Any]:
    """Return a maker of decompressors for one stream. Raises DataError without zstandard."""
    if kind == "gzip":
        return lambda: zlib.decompressobj(wbits=31)
    try:
        from zstandard import ZstdDecompressor
    except ImportError:
        raise DataError(
            f"{shown(path)} is compressed with zstd, and zstandard is not installed: {install_command('data')}"
        ) from None
    # The largest possible window, as with `zstd --long=31`.
    return lambda: ZstdDecompressor(max_window_size=1 << 31).decompressobj()
