"""The data files that the trainer's options name, by data set, and their contents."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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


class Reader:
    """The checksums of files by what was read of them before: a data set of terabytes is read once."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._known = dict((read_state(paths.output, paths.data_sums, Sums) or Sums()).files)
        self._read_bytes = 0

    def sum_of(self, file: Path) -> Sum:
        """Return the checksum of a file. Raises OpsctlError where it changes while it is read, OSError."""
        real = file.resolve(strict=True)
        before = self._known.get(str(real))
        if before is not None and before == _as_now(real, before.xxh64):
            return before
        stat = _as_now(real, "")
        with opened(real, Expected()) as source:
            found = _as_now(real, digest_of(source))
        if msgspec.structs.replace(found, xxh64="") != stat:
            raise OpsctlError(f"{file} changed while it was read: send it when it rests")
        self._known[str(real)] = found
        self._read_bytes += found.bytes
        tell_progress(self._read_bytes)
        with contextlib.suppress(OSError):  # it is read again then
            write_state(self._paths.output, self._paths.data_sums, Sums(files=self._known))
        return found


def _as_now(file: Path, xxh64: str) -> Sum:
    stat = file.stat()
    return Sum(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, xxh64)


@contextlib.contextmanager
def opened(file: Path, expected: Expected) -> Iterator[Source]:
    """Yield a file that may be a link, as a source of a store. Raises OpsctlError."""
    try:
        real = file.resolve(strict=True)
    except OSError as error:
        raise OpsctlError(file_problem(error, file)) from None
    with held_folder(real.parent) as folder:
        yield file_source(folder, real.name, expected)
