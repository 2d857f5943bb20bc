"""The input of a preparation: the files that a command line names, and folders, in order."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from trainer.data import pieces
from trainer.data.pieces import FileFacts, Piece, Skipped, shown
from trainer.formats.errors import DataError

#: The kinds of files by their first bytes; all others are plain lines.
_KINDS = {b"PAR1": pieces.parquet_rows, b"\x1f\x8b": pieces.gzip_lines, b"\x28\xb5\x2f\xfd": pieces.zstd_lines}
#: Names of files that contain records.
RECORDS = (
    *(".parquet", ".jsonl", ".ndjson"),
    *(f"{name}.{packed}" for name in (".jsonl", ".ndjson", ".json") for packed in ("gz", "zst")),
)


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


@dataclass(frozen=True)
class Choice:
    """A filter for inputs. written: the prefix of the output, which is never input."""

    key: str = "text"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    written: Path | None = None

    def takes(self, path: str) -> bool:
        """Return True if a file of a folder is read, by its path in it."""
        return not self.leaves_out(path) and (not self.include or any(_matches(path, one) for one in self.include))

    def leaves_out(self, path: str) -> bool:
        """Return True if a file or a whole folder is excluded."""
        return any(_matches(path, pattern) for pattern in self.exclude)

    def is_written(self, folder: str, name: str) -> bool:
        """Return True if a file is part of the output, or a temporary file of it."""
        if self.written is None or os.path.realpath(folder) != os.path.realpath(self.written.parent):
            return False
        return name.lstrip(".").startswith((f"{self.written.name}.", "tokenizer.json"))


@dataclass(frozen=True)
class Source:
    """One file, or one folder whose `files` are documents; their paths are relative to it."""

    path: str
    files: tuple[FileFacts, ...]
    cut: Callable[[str, Sequence[FileFacts], str], pieces.Cut]

    @property
    def total_bytes(self) -> int:
        """The bytes to read."""
        return sum(file.size_bytes for file in self.files)

    def identity(self) -> str:
        """Return a digest that changes when the source does."""
        facts = (self.path, self.cut.__name__, pieces.PIECE_BYTES, self.files)
        return hashlib.sha256(repr(facts).encode("utf-8", "surrogateescape")).hexdigest()[:32]

    def changed(self) -> str | None:
        """Return the first file that has changed; None without one."""
        for was in self.files:
            path = os.path.join(self.path, was.path)  # noqa: PTH118
            try:
                now = os.stat(path)  # noqa: PTH116 -- a name may be any bytes
            except OSError:
                return path
            if (now.st_size, now.st_mtime_ns) != was[1:]:
                return path
        return None


class Corpus:
    """The inputs of a command line. Raises DataError if they are empty or cannot be read."""

    def __init__(self, inputs: Sequence[str], choice: Choice):
        self.name = shown(inputs[0]) if len(inputs) == 1 else f"{shown(inputs[0])} and {len(inputs) - 1:,} more"
        if (choice.include or choice.exclude) and not any(map(os.path.isdir, inputs)):
            raise DataError(f"--include and --exclude choose files of a folder, and {shown(inputs[0])} is a file")
        self._key = choice.key
        self.sources = [source for path in inputs for source in _sources_at(path, choice)]
        self.total_bytes = sum(source.total_bytes for source in self.sources)

    def pieces(self, start: Position = BEGINNING) -> Iterator[Placed]:
        """Yield the pieces from `start` on, in order. Raises DataError if one cannot be read."""
        before = 0
        for number, source in enumerate(self.sources):
            if number >= start.source:
                for place, (piece, read_bytes) in enumerate(source.cut(source.path, source.files, self._key), 1):
                    if Position(number, place) > start:
                        yield Placed(piece, Position(number, place), before + read_bytes)
            before += source.total_bytes

    def texts(self) -> Iterator[tuple[str, int]]:
        """Yield every document, and the total bytes read until then."""
        for placed in self.pieces():
            for text in placed.piece.texts(Skipped()):
                yield text, placed.read_bytes

    def changed(self) -> str | None:
        """Return the first file that changed since this was created; None without one."""
        return next((shown(path) for source in self.sources if (path := source.changed())), None)


def _sources_at(path: str, choice: Choice) -> list[Source]:
    """Return a file, or a folder's sources: each file is a document, unless all names are those of record files."""
    if not os.path.isdir(path):  # noqa: PTH112
        return [_file(path, choice.key)]
    files = sorted(_walk(path, choice), key=lambda file: os.fsencode(file.path))
    records = [file.path for file in files if file.path.endswith(RECORDS)]
    if not files:
        raise DataError(f"no files to read in {shown(path)} with the given --include and --exclude")
    if not records:
        return [Source(path, tuple(files), pieces.documents)]
    if len(records) == len(files):
        return [_file(os.path.join(path, file.path), choice.key) for file in files if file.size_bytes]  # noqa: PTH118
    other = next(file.path for file in files if file.path not in records)
    pattern = "*" + next(one for one in RECORDS if records[0].endswith(one))
    raise DataError(
        f"{shown(path)} has record files ({shown(records[0])}) and others ({shown(other)}): "
        f"choose with --include or --exclude {pattern!r}"
    )


def _file(path: str, key: str) -> Source:
    """Return the source for one file, by its first bytes."""
    try:
        found = os.stat(path)  # noqa: PTH116
        if not stat.S_ISREG(found.st_mode):
            raise DataError(f"{shown(path)} is not a regular file; give a file or a folder")
        with open(path, "rb") as file:  # noqa: PTH123
            start = file.read(4)
    except OSError as error:
        raise DataError(f"cannot read {shown(path)}: {error.strerror}") from None
    if not found.st_size:
        raise DataError(f"{shown(path)} is empty; expected one JSON object a line with the text under {key!r}")
    cut = next((cut for magic, cut in _KINDS.items() if start.startswith(magic)), pieces.plain_lines)
    return Source(path, (FileFacts(os.path.abspath(path), found.st_size, found.st_mtime_ns),), cut)  # noqa: PTH100


def _walk(root: str, choice: Choice) -> Iterator[FileFacts]:
    """Yield the regular files to read, with paths relative to `root`."""

    def cannot_list(error: OSError) -> None:
        raise DataError(f"cannot read the folder {shown(error.filename)}: {error.strerror}")

    join: Callable[..., str] = os.path.join
    for folder, names, files in os.walk(root, onerror=cannot_list):
        inside = os.path.relpath(folder, root)
        names[:] = [name for name in names if not choice.leaves_out(os.path.normpath(join(inside, name)))]
        for name in files:
            path = os.path.normpath(join(inside, name))
            if not choice.takes(path) or choice.is_written(folder, name):
                continue
            try:
                found = os.stat(join(root, path))  # noqa: PTH116
            except OSError:
                continue  # a broken link, or removed meanwhile
            if stat.S_ISREG(found.st_mode):
                yield FileFacts(path, found.st_size, found.st_mtime_ns)


def _matches(path: str, pattern: str) -> bool:
    """Return True if the path or its last part matches: `tests` and `*/tests/*` exclude every folder of that name."""
    last = path.rsplit("/", 1)[-1]
    return any(fnmatch.fnmatchcase(form, pattern) for form in (path, f"/{path}", last))
