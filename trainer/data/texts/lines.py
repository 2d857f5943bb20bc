"""JSON-lines: a document in each line's object, under a key. Plain files are cut into ranges that workers read."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from trainer.data.texts.piece import PIECE_BYTES, FileFacts, Skipped, shown
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
        """The lines' bytes, and where the first begins."""
        with open(self.path, "rb") as file:  # noqa: PTH123 -- a name may be any bytes
            if os.fstat(file.fileno()).st_size < self.end:
                raise DataError(f"{shown(self.path)} became shorter while it was read")
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
        """What is to be read."""
        return self.files[0].size_bytes

    def pieces(self) -> Iterator[tuple[LinesOfFile, int]]:
        """(piece, bytes read at its end)."""
        path = os.fsencode(self.path)
        for start in range(0, self.total_bytes, PIECE_BYTES):
            end = min(self.total_bytes, start + PIECE_BYTES)
            yield LinesOfFile(path, start, end, self.key), end


def texts_of_lines(raw: bytes, key: str, path: bytes, lines_before: Callable[[], int], skipped: Skipped) -> list[str]:
    """The texts of whole lines. lines_before: counts those of the file that come before, for an error's sake."""
    decode, texts = _decoder(key), []
    for index, line in enumerate(raw.split(b"\n")):
        if not line or line.isspace():
            continue
        try:
            text = decode(line).text
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # JSON that is unusual, or is none.
            text = _text(line, lines_before() + index + 1, key, path)
        if text:
            texts.append(text)
        else:
            skipped.empty += 1
    return texts


@functools.cache
def _decoder(key: str) -> Callable[[bytes], Any]:
    """Of an object with a text under `key`; what else it holds is passed over. It raises for all that is unusual."""
    try:
        line = msgspec.defstruct("Line", [("text", str, msgspec.field(name=key))], gc=False)
    except ValueError:
        return _refuse  # a key that msgspec has no name for
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
        raise DataError(f"{where}: {key!r} holds {_kind(text)} instead of text")
    # Half a surrogate pair can be written in JSON but is no text.
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
