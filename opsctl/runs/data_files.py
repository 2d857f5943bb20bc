"""The data files a run reads, looked at without numpy: are they there and whole, do they hold one sample."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opsctl.runs.expansion import is_number
from trainer.options import BY_KEY

_HEADER = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\x00\x00"
#: Token ids' dtype codes -> bytes a token.
_TOKEN_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 8: 2}
_WEIGHTED = re.compile(r"[\d.eE+-]+\s+[\d.]+:[\d.]+\s+(?P<prefix>[^\s,\"]+)")
_AGAIN = "copy it again or prepare the data again (opsctl data prepare)"


def data_problems(data: Mapping[str, Any], sequence_length: int | None) -> list[str]:
    """What is wrong with the files that the expanded `[data]` table names, a line each; none when all is well."""
    problems = []
    seen: set[tuple[str, str]] = set()
    if not any(data.get(key) for key in ("data_path", "train_weighted_split_paths", "train_weighted_split_paths_path")):
        problems.append("[data] names no training data: give data_path, or train_weighted_split_paths")
    for key in ("vocab_file", "merge_file"):
        if data.get(key) and not Path(data[key]).is_file():
            problems.append(f"[data] {key}: no file {data[key]}")
    for part in ("train", "valid", "test"):
        key = f"{part}_weighted_split_paths_path"
        if data.get(key) and not Path(data[key]).is_file():
            problems.append(f"[data] {key}: no file {data[key]}; it holds one line of groups in double quotes")
    for key, prefix in prefixes(data):
        if (key, prefix) in seen:
            continue
        seen.add((key, prefix))
        problem = pair_problem(prefix, sequence_length)
        if problem:
            problems.append(f"[data] {key}: {problem}")
    return problems


def share_problems(options: Mapping[str, Any]) -> list[str]:
    """What is wrong with how options of all tables share the data out, a line each: splits, weighted groups, sizes.

    For files that `data_problems` found whole. Whether validation has enough is left to the trainer.
    """
    from trainer.data.check import data_errors
    from trainer.data.errors import DataError
    from trainer.data.sources import groups

    given = {key: [value] if _many(key) and isinstance(value, str) else value for key, value in options.items()}
    complete = {key: option.default for key, option in BY_KEY.items()} | given
    if not isinstance(complete["seq_length"], int):
        return []
    problems = data_errors(complete, ("train",))
    for split in ("valid", "test"):
        try:
            groups(complete, split)
        except DataError as error:
            problems.append(str(error))
    return [f"[data] {problem}" for problem in dict.fromkeys(problems)]


def _many(key: str) -> bool:
    return key in BY_KEY and BY_KEY[key].nargs == "+"


def prefixes(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, prefix) of every `.bin/.idx` pair that an expanded `[data]` table names, itself or in its split files."""
    path = data.get("data_path")
    for word in [path] if isinstance(path, str) else path or []:
        if not is_number(word):
            yield "data_path", str(word)
    for part in ("train", "valid", "test"):
        key = f"{part}_weighted_split_paths"
        groups = data.get(key)
        for text in [groups] if isinstance(groups, str) else groups or []:
            for match in _WEIGHTED.finditer(str(text)):
                yield key, match["prefix"]
        if data.get(f"{key}_path"):
            try:
                text = Path(data[f"{key}_path"]).read_text(errors="replace")
            except OSError:
                continue
            for match in _WEIGHTED.finditer(text):
                yield f"{key}_path", match["prefix"]


def pair_problem(prefix: str, sequence_length: int | None) -> str | None:
    """What is wrong with `PREFIX.idx` and `PREFIX.bin`, looking only at the header, the ends and the sizes."""
    index, tokens = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for file, other in ((index, tokens), (tokens, index)):
        if not file.is_file():
            if prefix.endswith((".bin", ".idx")):
                return f"no file {file}; write the prefix without .bin or .idx"
            beside = f"although {other.name} is there; " if other.is_file() else "; "
            return f"no file {file} {beside}make it with opsctl data prepare".replace(" ; ", "; ")
    try:
        return _index_problem(index, tokens, sequence_length)
    except OSError as error:
        return f"cannot read {error.filename or index}: {error.strerror}"


def _index_problem(index: Path, tokens: Path, sequence_length: int | None) -> str | None:
    found, token_file_bytes = index.stat().st_size, tokens.stat().st_size
    with index.open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return f"{index} is no usable index: {found} bytes, less than its header; {_AGAIN}"
        magic, version, code, sequences, documents = _HEADER.unpack(head)
        if magic != _MAGIC:
            return f"{index} is no usable index: it starts with {magic!r}, not {_MAGIC!r}; {_AGAIN}"
        if version != 1 or code not in _TOKEN_BYTES:
            return f"{index} is no usable index: version {version}, dtype code {code}; {_AGAIN}"
        needed = _HEADER.size + 12 * sequences + 8 * documents
        if found not in (needed, needed + sequences):
            return f"{index} is no usable index: {found:,} bytes where its header promises {needed:,}; {_AGAIN}"
        end = 0
        if sequences:
            file.seek(_HEADER.size + 4 * (sequences - 1))
            (last_length,) = struct.unpack("<i", file.read(4))
            file.seek(_HEADER.size + 4 * sequences + 8 * (sequences - 1))
            (last_start,) = struct.unpack("<q", file.read(8))
            end = last_start + last_length * _TOKEN_BYTES[code]
    if end != token_file_bytes:
        return f"{tokens}: {token_file_bytes:,} bytes where its index ends at {end:,}; {_AGAIN}"
    count = token_file_bytes // _TOKEN_BYTES[code]
    if sequence_length is not None and count < sequence_length + 1:
        return (
            f"{tokens} holds {count:,} tokens, less than one sample of seq_length + 1 = {sequence_length + 1:,}; "
            "give more text or a smaller seq_length"
        )
    return None
