"""The input of a preparation: its sources in order, split into the same pieces each time."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import msgspec

from trainer.data.texts.columns import RowsRead
from trainer.data.texts.inputs import Choice, Documents, FilesOfFolder, Source, sources_of
from trainer.data.texts.lines import LinesOfFile, LinesRead
from trainer.data.texts.piece import FileFacts, Skipped, in_order, shown

Piece = LinesOfFile | LinesRead | FilesOfFolder | RowsRead
#: Sources that are unpacked at the same time, and the pieces of each that may wait.
SOURCES_AT_ONCE, PIECES_AHEAD = 4, 16


class Position(msgspec.Struct, frozen=True, order=True):
    """A position before a piece: `piece` of the source with this number, both counted from 0."""

    source: int = 0
    piece: int = 0


BEGINNING = Position()


class Placed(NamedTuple):
    """A piece, the position after it, and the total bytes read until then."""

    piece: Piece
    behind: Position
    read_bytes: int


class Corpus:
    """The inputs of a command line. Raises DataError if they are empty or cannot be read."""

    def __init__(self, inputs: Sequence[str], choice: Choice):
        self.name = shown(inputs[0]) if len(inputs) == 1 else f"{shown(inputs[0])} and {len(inputs) - 1:,} more"
        self._sources = sources_of(inputs, choice)
        self.total_bytes = sum(source.total_bytes for source in self._sources)

    def pieces(self, start: Position = BEGINNING) -> Generator[Placed]:
        """Yield the pieces from `start` on, in order. Raises DataError if one cannot be read."""
        before = sum(source.total_bytes for source in self._sources[: start.source])
        readers = []
        for number, source in enumerate(self._sources[start.source :], start.source):
            skip = start.piece if number == start.source else 0
            readers.append(functools.partial(_placed, source, number, skip, before))
            before += source.total_bytes
        return in_order(readers, SOURCES_AT_ONCE, PIECES_AHEAD)

    def texts(self) -> Iterator[tuple[str, int]]:
        """Yield every document, and the total bytes read until then."""
        for placed in self.pieces():
            for text in placed.piece.texts(Skipped()):
                yield text, placed.read_bytes

    def identities(self) -> list[tuple[str, str]]:
        """Return (name, identity) of each source. The identity changes when the source changes."""
        return [(shown(source.path), _identity(source)) for source in self._sources]

    def changed(self) -> str:
        """Return the first file that changed since this was created; empty without one."""
        for source in self._sources:
            for was in source.files:
                path = os.path.join(source.path, was.path) if isinstance(source, Documents) else was.path  # noqa: PTH118
                try:
                    now = FileFacts.of(path)
                except OSError:
                    return shown(path)
                if (now.size_bytes, now.changed_ns) != (was.size_bytes, was.changed_ns):
                    return shown(path)
        return ""


def _placed(source: Source, number: int, skip: int, before: int) -> Iterator[Placed]:
    pieces: Iterator[tuple[Piece, int]] = source.pieces()
    for place, (piece, read_bytes) in enumerate(pieces):
        if place >= skip:
            yield Placed(piece, Position(number, place + 1), before + read_bytes)


def _identity(source: Source) -> str:
    facts = [(type(source).__name__, file.path, file.size_bytes, file.changed_ns) for file in source.files]
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
