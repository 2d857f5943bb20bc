"""The data files a run reads, looked at without numpy: are they there and whole, do they hold one sample."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opsctl.runs.expansion import is_number
from trainer.formats.data_check import data_errors
from trainer.formats.data_sources import SPLITS
from trainer.formats.errors import DataError
from trainer.formats.index_header import read_header
from trainer.formats.vocabulary_files import vocab_size
from trainer.recipe.options import Options

_WEIGHTED = re.compile(r"[\d.eE+-]+\s+[\d.]+:[\d.]+\s+(?P<prefix>[^\s,\"]+)")


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


def share_problems(options: Options) -> list[str]:
    """What is wrong with how options of all tables share the data out, a line each: splits, weighted groups, sizes,
    a vocabulary smaller than the data's.

    For files that `data_problems` found whole. A job would refuse the same, three times, and trip the chain's brake.
    """
    if options.seq_length is None:
        return []
    problems = data_errors(options, SPLITS if options.eval_iters else ("train",))
    if not problems and options.vocab_size:  # a tokenizer by name may be one that only compute nodes have
        try:
            vocab_size(options)
        except DataError as error:
            problems.append(str(error))
    return [f"[data] {problem}" for problem in dict.fromkeys(problems)]


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
    try:
        tokens = read_header(prefix).tokens
    except DataError as error:
        unending = "; write the prefix without .bin or .idx" if prefix.endswith((".bin", ".idx")) else ""
        return f"{error}{unending}"
    if sequence_length is not None and tokens < sequence_length + 1:
        return (
            f"{prefix}.bin holds {tokens:,} tokens, less than one sample of seq_length + 1 = {sequence_length + 1:,}; "
            "give more text or a smaller seq_length"
        )
    return None
