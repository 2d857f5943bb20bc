"""The data files that the trainer's options name, by data set, and their contents."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import read_state, write_state
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.background_progress import tell_progress
from opsctl.transfer.object_store.sources import Source, digest_of, file_source
from opsctl.transfer.object_store.store import held_folder
from opsctl.transfer.object_store.types import Expected
from trainer.formats.data.data_sources import groups, prefixes
from trainer.formats.data.index_header import bin_path, idx_path, read_header
from trainer.formats.data.vocabulary_files import notes_path, tokenizer_path
from trainer.formats.errors import DataError
from trainer.recipe.data_options import SPLITS, weighted_file_key

PAIR, FOLDER, FILE = "pair", "folder", "file"
#: What of a tokenizer's folder is sent: a model's weights may lie beside.
_OF_A_TOKENIZER = (
    *("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json"),
)


@dataclass(frozen=True)
class NamedSet:
    """The files behind one value of an option. `files` by part: `.bin`, `.idx` and `.json` of a pair, the name in a
    folder, nothing for a single file.
    """

    options: tuple[str, ...]  # the run file's keys that name it
    kind: str
    path: str  # absolute: the pair's prefix, the folder, the file
    files: Mapping[str, Path]
    name: str  # for people

    def here(self, part: str) -> Path:
        """Return where a part of it is, or is to be."""
        return part_of(self.kind, self.path, part)


def part_of(kind: str, path: str, part: str) -> Path:
    """Return the file that `part` is, of a set at `path`."""
    return Path(path) / part if kind == FOLDER else Path(f"{path}{part}")


def named_sets(options: Mapping[str, Any]) -> list[NamedSet]:
    """Return everything that the options name, each once. Raises OpsctlError for what is not there, or is no data."""
    found: dict[tuple[str, str], NamedSet] = {}
    try:
        for split in SPLITS:
            groups(options, split)  # says what is wrong with them, which `prefixes` does not
        for one in _each(options):
            key = one.kind, one.path
            before = found.get(key)
            known = before.options if before else ()
            found[key] = replace(one, options=tuple(dict.fromkeys((*known, *one.options))))
    except DataError as error:
        raise OpsctlError(f"no data set is sent: {error}") from None
    return list(found.values())


def _each(options: Mapping[str, Any]) -> Iterator[NamedSet]:
    for key, prefix in prefixes(options):
        read_header(prefix)  # refuses a pair of which one is missing or cut short
        path = os.path.abspath(prefix)  # noqa: PTH100 - links stay as written
        files = {".bin": bin_path(path), ".json": notes_path(path), ".idx": idx_path(path)}
        there = {part: file for part, file in files.items() if part != ".json" or file.is_file()}
        yield NamedSet((key,), PAIR, path, there, Path(path).name)
    for key in (*map(weighted_file_key, SPLITS), "vocab_file", "merge_file"):
        if options.get(key):
            yield _file(key, Path(options[key]))
    if named := options.get("tokenizer_name_or_path"):
        place = tokenizer_path(str(named)).absolute()
        if not place.is_dir():
            yield _file("tokenizer_name_or_path", place)
            return
        files = {name: place / name for name in _OF_A_TOKENIZER if (place / name).is_file()}
        if not files:
            raise DataError(f"no tokenizer in {place}: expected tokenizer.json, or vocab.json and merges.txt")
        yield NamedSet(("tokenizer_name_or_path",), FOLDER, str(place), files, Path(str(named)).name or "tokenizer")


def _file(key: str, file: Path) -> NamedSet:
    path = file.absolute()
    if not path.is_file():
        raise DataError(f"{key}: no file {path}")
    return NamedSet((key,), FILE, str(path), {"": path}, path.name)


class Sum(msgspec.Struct, frozen=True):
    """The checksum of a file when it was last read completely, and the times that would show a change."""

    bytes: int
    changed_ns: int  # its mtime
    touched_ns: int  # its ctime, which cannot be set back
    xxh64: str


class Sums(msgspec.Struct, frozen=True):
    """`.opsctl/data-sums.json`."""

    schema_version: int = 1
    files: dict[str, Sum] = {}  # by absolute path without links


@dataclass
class Reader:
    """Knows what is in files, by what was read of them before: a data set of terabytes is not read at each backup."""

    paths: RunPaths
    known: dict[str, Sum] = field(init=False)
    _read_bytes: int = 0

    def __post_init__(self) -> None:
        found = read_state(self.paths.output, self.paths.data_sums, Sums)
        self.known = dict(found.files) if found else {}

    def sum_of(self, file: Path) -> Sum:
        """Return what is in a file. Raises OpsctlError where it changes while it is read, OSError."""
        real = file.resolve(strict=True)
        stat = real.stat()
        before = self.known.get(str(real))
        if before is not None and _is_as(before, stat):
            return before
        with opened(real, Expected()) as source:
            xxh64 = digest_of(source)
        found = Sum(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, xxh64)
        if not _is_as(found, real.stat()):
            raise OpsctlError(f"{file} changed while it was read: send it when it rests")
        self.known[str(real)] = found
        self._read_bytes += found.bytes
        tell_progress(self._read_bytes)
        with contextlib.suppress(OSError):  # it is read again then
            write_state(self.paths.output, self.paths.data_sums, Sums(files=self.known))
        return found

    def has_changed(self, file: Path, since: Sum) -> bool:
        """Return whether a file is no more what it was; also where it is gone."""
        try:
            return not _is_as(since, file.resolve(strict=True).stat())
        except OSError:
            return True


@contextlib.contextmanager
def opened(file: Path, expected: Expected) -> Iterator[Source]:
    """Yield a file that may be a link, as a source of a store. Raises OpsctlError."""
    try:
        real = file.resolve(strict=True)
    except OSError as error:
        raise OpsctlError(file_problem(error, file)) from None
    with held_folder(real.parent) as folder:
        yield file_source(folder, real.name, expected)


def _is_as(one: Sum, stat: os.stat_result) -> bool:
    return (one.bytes, one.changed_ns, one.touched_ns) == (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
