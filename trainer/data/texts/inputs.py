"""The inputs of a preparation: the files that a command line names, and folders of documents."""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trainer.core.files import read_plain
from trainer.data.texts.columns import MAGIC, Table
from trainer.data.texts.lines import GZIP_MAGIC, ZSTD_MAGIC, CompressedLines, PlainLines
from trainer.data.texts.piece import PIECE_BYTES, FileFacts, Skipped, shown
from trainer.formats.errors import DataError

#: Reading a file costs as much as this many bytes of text, however small it is.
_BYTES_A_FILE = 4096


class FilesOfFolder(msgspec.Struct, frozen=True, tag=True):
    """Files of a folder, by their relative paths."""

    root: bytes
    names: list[bytes]

    def texts(self, skipped: Skipped) -> list[str]:
        """See `piece.Readable`.

        Files that are empty, unreadable or not UTF-8 text (also with NUL bytes) are skipped.
        """
        found = []
        for name in self.names:
            try:
                with open(os.path.join(self.root, name), "rb") as file:  # noqa: PTH118, PTH123
                    text = file.read().decode("utf-8-sig")
            except OSError:
                skipped.note("unreadable", shown(name))
                continue
            except UnicodeDecodeError:
                skipped.note("not_text", shown(name))
                continue
            if "\0" in text:
                skipped.note("not_text", shown(name))
            elif not text:
                skipped.empty += 1
            else:
                found.append(text)
        return found


@dataclass(frozen=True)
class Documents:
    """The folder `path`, whose `files` are the documents. Their paths are relative to it."""

    path: str
    files: tuple[FileFacts, ...]

    @property
    def total_bytes(self) -> int:
        """The bytes to read."""
        return sum(file.size_bytes for file in self.files)

    def pieces(self) -> Iterator[tuple[FilesOfFolder, int]]:
        """Yield (piece, bytes read at its end)."""
        names: list[bytes] = []
        read = weight = 0
        for number, file in enumerate(self.files, 1):
            names.append(os.fsencode(file.path))
            read += file.size_bytes
            weight += file.size_bytes + _BYTES_A_FILE
            if weight >= PIECE_BYTES or number == len(self.files):
                yield FilesOfFolder(os.fsencode(self.path), names), read
                names, weight = [], 0


Source = PlainLines | CompressedLines | Documents | Table
#: Names of files that contain records.
RECORDS = (
    *(".parquet", ".arrow", ".jsonl", ".ndjson"),
    *(f"{name}.{packed}" for name in (".jsonl", ".ndjson", ".json") for packed in ("gz", "zst")),
)
_LARGEST_STATE_BYTES = 64 << 20


@dataclass(frozen=True)
class Choice:
    """A filter for inputs. split: the chosen split of a folder with several; None if not given.

    written: real paths of the output files, which are never input.
    """

    key: str = "text"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    split: str | None = None
    written: Collection[str] = ()

    def takes(self, path: str) -> bool:
        """Return True if a file of a folder is read, by its path in it."""
        return not self.leaves_out(path) and (not self.include or any(_matches(path, one) for one in self.include))

    def leaves_out(self, path: str) -> bool:
        """Return True if a file or a whole folder is excluded."""
        return any(_matches(path, pattern) for pattern in self.exclude)

    def is_written(self, path: str) -> bool:
        """Return True if a file, by its real path, is one of `written`, or becomes one."""
        folder, name = os.path.split(path)
        if name.startswith(".") and name.endswith(".tmp"):
            return any(path.startswith(os.path.join(folder, f".{os.path.basename(one)}.")) for one in self.written)  # noqa: PTH118, PTH119
        return path in self.written


def sources_of(inputs: Sequence[str], choice: Choice) -> list[Source]:
    """Return all sources to read, in order. Raises DataError if one is missing or cannot be read."""
    paths = [path for word in inputs for path in _meant(word)]
    if (choice.include or choice.exclude) and not any(map(os.path.isdir, paths)):
        raise DataError(f"--include and --exclude choose files of a folder, and {shown(paths[0])} is a file")
    datasets = [path for path in paths if _is_dataset(path) or _is_dict_of_datasets(path)]
    if choice.split and not datasets:
        raise DataError(f"--split {choice.split} needs a folder that datasets saved, and {shown(paths[0])} is not one")
    return [source for path in paths for source in _sources_at(path, choice)]


def _meant(word: str) -> list[str]:
    """Return the paths of a word: itself, or those of a pattern, in byte order."""
    if os.path.lexists(word):
        return [word]
    found = sorted(glob.glob(word, recursive=True), key=os.fsencode) if glob.has_magic(word) else []  # noqa: PTH207
    if not found:
        raise DataError(f"no such file or folder: {shown(word)}")
    return found


def _sources_at(path: str, choice: Choice) -> list[Source]:
    if not os.path.isdir(path):  # noqa: PTH112
        return [_file(path, choice.key)]
    if _is_dict_of_datasets(path):
        return _sources_at(_chosen_split(path, choice.split), choice)
    if _is_dataset(path):
        return _dataset(path, choice)
    return _folder(path, choice)


def _file(path: str, key: str) -> Source:
    """Return the source for one file, by its first bytes."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
            raise DataError(f"{shown(path)} is not a regular file; give a file or a folder")
        facts = (FileFacts.of(path),)
        with open(path, "rb") as file:  # noqa: PTH123 -- a name may be any bytes
            start = file.read(8)
    except OSError as error:
        raise DataError(f"cannot read {shown(path)}: {error.strerror}") from None
    if not facts[0].size_bytes:
        raise DataError(f"{shown(path)} is empty; expected one JSON object a line with the text under {key!r}")
    for kind, magic in MAGIC.items():
        if start.startswith(magic):
            return Table(path, key, kind, facts)
    if start.startswith(GZIP_MAGIC):
        return CompressedLines(path, key, "gzip", facts)
    if start.startswith(ZSTD_MAGIC):
        return CompressedLines(path, key, "zstd", facts)
    return PlainLines(path, key, facts)


def _folder(root: str, choice: Choice) -> list[Source]:
    """Return a folder's sources: each file is a document, or, if all names are those of record files, their records."""
    files = sorted(_walk(root, choice), key=lambda file: os.fsencode(file.path))
    if not files:
        asked = [f"{word} {one!r}" for word, all_ in _patterns(choice) for one in all_]
        raise DataError(f"no files to read in {shown(root)}" + (f" with {' '.join(asked)}" if asked else ""))
    if all(file.path.endswith(RECORDS) for file in files):
        return [_file(os.path.join(root, file.path), choice.key) for file in files if file.size_bytes]  # noqa: PTH118
    records = next((file.path for file in files if file.path.endswith(RECORDS)), None)
    if records:
        other = next(file.path for file in files if not file.path.endswith(RECORDS))
        pattern = "*" + next(one for one in RECORDS if records.endswith(one))
        raise DataError(
            f"{shown(root)} has record files ({shown(records)}) and others ({shown(other)}): "
            f"choose with --include or --exclude {pattern!r}"
        )
    return [Documents(root, tuple(files))]


def _patterns(choice: Choice) -> Iterator[tuple[str, Sequence[str]]]:
    yield "--include", choice.include
    yield "--exclude", choice.exclude


def _walk(root: str, choice: Choice) -> Iterator[FileFacts]:
    """Yield the regular files to read, with paths relative to `root`."""
    join: Callable[..., str] = os.path.join
    for folder, names, files in os.walk(root, onerror=_cannot_list):
        inside = os.path.relpath(folder, root)
        names[:] = [name for name in names if not choice.leaves_out(os.path.normpath(join(inside, name)))]
        real = os.path.realpath(folder)
        for name in files:
            path = os.path.normpath(join(inside, name))
            if not choice.takes(path) or choice.is_written(join(real, name)):
                continue
            try:
                found = os.stat(join(root, path))  # noqa: PTH116
            except OSError:
                continue  # a broken link, or removed meanwhile
            if stat.S_ISREG(found.st_mode):
                yield FileFacts(path, found.st_size, found.st_mtime_ns)


def _is_dataset(path: str) -> bool:
    return (Path(path) / "state.json").is_file() and (Path(path) / "dataset_info.json").is_file()


def _is_dict_of_datasets(path: str) -> bool:
    return (Path(path) / "dataset_dict.json").is_file()


def _chosen_split(path: str, wanted: str | None) -> str:
    """Return the folder of a split that `DatasetDict.save_to_disk` wrote."""
    splits = _json(Path(path) / "dataset_dict.json").get("splits")
    names = [name for name in splits if isinstance(name, str)] if isinstance(splits, list) else []
    if wanted is None and len(names) == 1:
        wanted = names[0]
    if wanted not in names:
        there = ", ".join(names) or "none"
        said = (
            f"has no split {wanted!r}, only {there}" if wanted else f"has the splits {there}: choose one with --split"
        )
        raise DataError(f"{shown(path)} {said}")
    return os.path.join(path, str(wanted))  # noqa: PTH118


def _dataset(path: str, choice: Choice) -> list[Source]:
    """Return the files that the state.json of `Dataset.save_to_disk` lists."""
    state = _json(Path(path) / "state.json")
    if choice.split and state.get("_split") not in (None, choice.split):
        raise DataError(f"{shown(path)} is the split {state['_split']!r}, not {choice.split!r}")
    listed = state.get("_data_files")
    files = [file.get("filename") for file in listed if isinstance(file, dict)] if isinstance(listed, list) else []
    names = [name for name in files if isinstance(name, str) and name == os.path.basename(name)]  # noqa: PTH119
    if not names or len(names) != len(files):
        raise DataError(f"{shown(path)}/state.json lists no data files under '_data_files'")
    if state.get("_indices_data_files"):
        raise DataError(
            f"{shown(path)} stores the order of its rows in another file; save it again with flatten_indices()"
        )
    return [_file(os.path.join(path, name), choice.key) for name in names]  # noqa: PTH118


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_plain(path, _LARGEST_STATE_BYTES))
    except OSError as error:
        raise DataError(f"cannot read {shown(path)}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{shown(path)} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{shown(path)} holds {type(value).__name__} instead of an object")
    return value


def _matches(path: str, pattern: str) -> bool:
    """Return True if the path or its last part matches: `tests` and `*/tests/*` exclude every folder of that name."""
    last = path.rsplit("/", 1)[-1]
    return any(fnmatch.fnmatchcase(form, pattern) for form in (path, f"/{path}", last))


def _cannot_list(error: OSError) -> None:
    raise DataError(f"cannot read the folder {shown(error.filename)}: {error.strerror}")
