"""Reading documents: JSON-lines (also gzipped), or a folder with one document per file, always in the same order."""

from __future__ import annotations

import fnmatch
import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from trainer.formats.errors import DataError

GZIP_MAGIC = b"\x1f\x8b"


@dataclass
class Skipped:
    """What was left out, by reason."""

    empty: int = 0
    not_text: int = 0  # not UTF-8, or holding NUL bytes
    unreadable: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, reason: str, what: str) -> None:
        """Count one under `reason`, a count's name. The first three that are not empty give `what` as an example."""
        setattr(self, reason, getattr(self, reason) + 1)
        if reason != "empty" and len(self.examples) < 3:
            self.examples.append(what)

    def words(self) -> str:
        """`3 empty, 1 not UTF-8 text (a.bin)`, or nothing."""
        named = ((self.empty, "empty"), (self.not_text, "not UTF-8 text"), (self.unreadable, "unreadable"))
        text = ", ".join(f"{count:,} {reason}" for count, reason in named if count)
        return f"{text} ({', '.join(self.examples)})" if self.examples else text


@dataclass(frozen=True)
class Document:
    """text: never empty. read_bytes: how far into the input this document ends, for a progress bar."""

    text: str
    read_bytes: int


class Folder:
    """Every regular file under a folder is a document, in the order of the bytes of its relative path."""

    def __init__(self, root: Path, include: Sequence[str] = (), exclude: Sequence[str] = ()):
        self.root = root
        self._include, self._exclude = include, exclude
        self.files = sorted(self._walk(), key=lambda found: os.fsencode(found[0]))
        self.total_bytes = sum(size for _, size in self.files)
        if not self.files:
            asked = " ".join([*(f"--include {p!r}" for p in include), *(f"--exclude {p!r}" for p in exclude)])
            raise DataError(f"no files to read in {shown(root)}" + (f" with {asked}" if asked else ""))

    def documents(self, skipped: Skipped) -> Iterator[Document]:
        """The files' texts.

        Files that are not UTF-8 text (or hold NUL bytes), empty or unreadable ones are counted in `skipped`.
        """
        read = 0
        for name, size in self.files:
            read += size
            try:
                raw = (self.root / name).read_bytes()
            except OSError:
                skipped.note("unreadable", shown(name))
                continue
            try:
                text = raw.decode("utf-8-sig")
            except UnicodeDecodeError:
                skipped.note("not_text", shown(name))
                continue
            if "\0" in text:
                skipped.note("not_text", shown(name))
            elif not text:
                skipped.note("empty", shown(name))
            else:
                yield Document(text, read)

    def _walk(self) -> Iterator[tuple[str, int]]:
        for folder, names, files in os.walk(self.root, onerror=_cannot_list):
            inside = os.path.relpath(folder, self.root)
            names[:] = [name for name in names if not self._left_out(os.path.normpath(os.path.join(inside, name)))]  # noqa: PTH118
            for name in files:
                path = os.path.normpath(os.path.join(inside, name))  # noqa: PTH118
                if self._left_out(path) or not self._asked_for(path):
                    continue
                try:
                    found = os.stat(os.path.join(self.root, path))  # noqa: PTH116, PTH118
                except OSError:
                    continue  # a link to nowhere, or gone meanwhile
                if stat.S_ISREG(found.st_mode):
                    yield path, found.st_size

    def _left_out(self, path: str) -> bool:
        return any(_matches(path, pattern) for pattern in self._exclude)

    def _asked_for(self, path: str) -> bool:
        return not self._include or any(_matches(path, pattern) for pattern in self._include)


class JsonLines:
    """A file with one JSON object a line; the text is under `key`. Blank lines do not count."""

    def __init__(self, path: Path, key: str):
        self.path, self.key = path, key
        try:
            self.total_bytes = path.stat().st_size
            with path.open("rb") as file:
                self._zipped = file.read(2) == GZIP_MAGIC
        except OSError as error:
            raise DataError(f"cannot read {shown(path)}: {error.strerror}") from None
        if not self.total_bytes:
            raise DataError(f"{shown(path)} is empty; expected one JSON object a line with the text under {key!r}")

    def documents(self, skipped: Skipped) -> Iterator[Document]:
        """The texts, line by line.

        Raises DataError with file and line for what is not JSON, not UTF-8 or lacks the key.
        """
        with self.path.open("rb") as file:
            lines: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=file) if self._zipped else file
            number = 0
            try:
                for number, line in enumerate(lines, 1):
                    if line.isspace():
                        continue
                    text = self._text(line, number)
                    if text:
                        yield Document(text, file.tell() if self._zipped else min(self.total_bytes, lines.tell()))
                    else:
                        skipped.note("empty", "")
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise DataError(
                    f"{shown(self.path)} is cut short or no gzip file after line {number:,}: {error}"
                ) from None

    def _text(self, line: bytes, number: int) -> str:
        where = f"{shown(self.path)}, line {number:,}"
        try:
            value: Any = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"{where}: not UTF-8 at byte {error.start + 1}; convert the file (iconv -t utf-8)"
            ) from None
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{where}: not a JSON object: {error}") from None
        if not isinstance(value, dict):
            raise DataError(f"{where}: {type(value).__name__} instead of an object with the text under {self.key!r}")
        if self.key not in value:
            keys = ", ".join(sorted(value)[:8]) or "nothing"
            raise DataError(f"{where}: no key {self.key!r}, found {keys}; choose one with --json-key")
        text = value[self.key]
        if not isinstance(text, str):
            raise DataError(f"{where}: {self.key!r} holds {type(text).__name__} instead of text")
        # Half a surrogate pair can be written in JSON but is no text.
        return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def open_corpus(path: Path, key: str, include: Sequence[str], exclude: Sequence[str]) -> Folder | JsonLines:
    """The reader for `path`."""
    if path.is_dir():
        return Folder(path, include, exclude)
    if not path.exists():
        raise DataError(f"no such file or folder: {shown(path)}")
    if include or exclude:
        raise DataError(f"--include and --exclude choose files of a folder, and {shown(path)} is a file")
    return JsonLines(path, key)


def shown(path: str | os.PathLike[str]) -> str:
    """A path for one line of a terminal, whatever bytes its name holds."""
    text = os.fspath(path)
    return text if text.isprintable() else ascii(text)


def _matches(path: str, pattern: str) -> bool:
    """Whether the path or its last part matches: `tests` and `*/tests/*` leave out every folder of that name."""
    last = path.rsplit("/", 1)[-1]
    return any(fnmatch.fnmatchcase(form, pattern) for form in (path, f"/{path}", last))


def _cannot_list(error: OSError) -> None:
    raise DataError(f"cannot read the folder {shown(error.filename)}: {error.strerror}")
