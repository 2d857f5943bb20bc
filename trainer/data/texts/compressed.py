"""JSON-lines in gzip or zstandard: a stream has no places to begin at, so it is unpacked in order and handed out."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from trainer.data.texts.lines import texts_of_lines
from trainer.data.texts.piece import PIECE_BYTES, FileFacts, Skipped, shown
from trainer.formats.distribution import install_command
from trainer.formats.errors import DataError

GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
#: Read at a time; what it unpacks to is held at once, and may be a thousand times as much.
_BLOCK_BYTES = 1 << 16


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
        """What is to be read, compressed."""
        return self.files[0].size_bytes

    def pieces(self) -> Iterator[tuple[LinesRead, int]]:
        """(piece, compressed bytes read at its end). Raises DataError for a stream that is cut short or damaged."""
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
                f"{shown(path)} is cut short or no {self.kind} file after line {lines:,}: {error}"
            ) from None
        except OSError as error:
            raise DataError(f"cannot read {shown(path)}: {error.strerror}") from None
        if waiting:
            yield LinesRead(path, lines, bytes(waiting), self.key), read


class _Damaged(Exception):
    """Why a stream cannot be unpacked."""


def _unpacked(path: str, new: Callable[[], Any]) -> Iterator[tuple[bytes, int]]:
    """(what comes next, bytes read so far). A file may be several streams, one after the other, with zeros between."""
    read, one, errors = 0, None, _errors()
    with open(path, "rb") as file:  # noqa: PTH123
        while block := file.read(_BLOCK_BYTES):
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
    """What makes what unpacks one stream. Raises DataError where zstandard is not installed."""
    if kind == "gzip":
        return lambda: zlib.decompressobj(wbits=31)
    try:
        from zstandard import ZstdDecompressor
    except ImportError:
        raise DataError(
            f"{shown(path)} is compressed with zstd, and zstandard is not installed: {install_command('data')}"
        ) from None
    # The largest window there is, as of `zstd --long=31`.
    return lambda: ZstdDecompressor(max_window_size=1 << 31).decompressobj()
