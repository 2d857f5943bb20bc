"""The data files a run reads, looked at without numpy: are they there and whole, do they hold one sample."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.formats.data.data_check import data_errors
from trainer.formats.data.data_sources import prefixes
from trainer.formats.data.index_header import read_header
from trainer.formats.data.vocabulary_files import vocab_size
from trainer.formats.errors import DataError
from trainer.recipe.data_options import SPLITS, weighted_file_key, weighted_key
from trainer.recipe.options import Options


def data_problems(data: Mapping[str, Any], sequence_length: int | None) -> list[str]:
    """What is wrong with the files that the expanded `[data]` table names, a line each; none when all is well."""
    problems = []
    if not any(data.get(key) for key in ("data_path", weighted_key("train"), weighted_file_key("train"))):
        problems.append("[data] names no training data: give data_path, or train_weighted_split_paths")
    holds = {weighted_file_key(split): "; it holds one line of groups in double quotes" for split in SPLITS}
    problems += [
        f"[data] {key}: no file {data[key]}{holds.get(key, '')}"
        for key in ("vocab_file", "merge_file", *holds)
        if data.get(key) and not Path(data[key]).is_file()
    ]
    pairs = dict.fromkeys(prefixes(data))  # each once, in order
    found = ((key, pair_problem(prefix, sequence_length)) for key, prefix in pairs)
    return problems + [f"[data] {key}: {problem}" for key, problem in found if problem]


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
