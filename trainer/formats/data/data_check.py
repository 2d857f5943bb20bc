"""Whether a run's data can be trained on, before a job waits a week to find out.

Needs nothing but the standard library.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from trainer.formats.data.data_sources import Group, Source, groups, prefixes
from trainer.formats.data.index_header import Header, idx_path, read_header
from trainer.formats.errors import DataError
from trainer.recipe.data_options import SPLITS

#: Lengths read at a time.
_PIECE = 1 << 20


def data_errors(options: Mapping[str, Any], splits: tuple[str, ...] = SPLITS) -> list[str]:
    """What is wrong with the data that `options` name, one line each; none when it can be trained on.

    Looks for missing, foreign and cut-short files, for sources that hold less than one sample, and for validation sets
    that hold less than one evaluation asks for. Of test sets, which are read once, samples may come again.
    """
    errors: list[str] = []
    validated: list[Group] = []
    headers: dict[str, Header | None] = {}
    for split in splits:
        try:
            found = groups(options, split)
        except DataError as error:
            errors.append(str(error))
            continue
        validated += found if split == "valid" else []
        for source in (source for group in found for source in group.sources):
            try:
                if source.prefix not in headers:
                    headers[source.prefix] = None
                    headers[source.prefix] = read_header(source.prefix)
                header = headers[source.prefix]
                if header is not None:
                    _refuse_small(header, source, split, options["seq_length"])
            except DataError as error:
                errors.append(str(error))
    return errors or _small_groups(validated, headers, options)


def damaged_pairs(options: Mapping[str, Any]) -> list[str]:
    """Return a line for each pair of data files that is missing, foreign or not as long as its index says."""
    errors = []
    for prefix in dict.fromkeys(prefix for _, prefix in prefixes(options)):
        try:
            read_header(prefix)
        except DataError as error:
            errors.append(str(error))
    return errors


def asked_samples(options: Mapping[str, Any]) -> int:
    """Samples that one evaluation takes of each group; 0 where none is made, or the batch is not known yet."""
    return int((options.get("eval_iters") or 0) * (options.get("global_batch_size") or 0))


def samples_of_one_pass(tokens: int, sequence_length: int) -> int:
    """Samples of `sequence_length` + 1 tokens, the last of each the first of the next, that so many tokens make."""
    return max(0, tokens - 1) // sequence_length


def fewer_than_asked(name: str, has: int, options: Mapping[str, Any]) -> DataError:
    """The error for a validation set of which one evaluation would read samples twice."""
    batches, batch = options["eval_iters"], options["global_batch_size"]
    remedy = f"--eval-iters {has // batch}" if has >= batch else "--eval-iters 0"
    called = "validation set" if name == "valid" else f"validation set {name!r}"
    return DataError(
        f"the {called} holds {has:,} samples and one evaluation asks for {batches * batch:,} "
        f"(--eval-iters {batches} x --global-batch-size {batch}): give it more documents, or {remedy}"
    )


def _small_groups(found: list[Group], headers: Mapping[str, Header | None], options: Mapping[str, Any]) -> list[str]:
    asked, length = asked_samples(options), options["seq_length"]
    errors = []
    for group in found:
        has = 0
        for source in group.sources:
            header = headers[source.prefix]
            if header is None:
                return []  # it is said already that it cannot be read
            first, last = source.documents(header.sequences)
            enough = (asked - has) * length + 1
            has += samples_of_one_pass(tokens_of(header, first, last, enough=enough), length)
        if has < asked:
            errors.append(str(fewer_than_asked(group.name, has, options)))
    return errors


def too_small(split: str, prefix: str, documents: int, of: int, tokens: int, sequence_length: int) -> DataError:
    """The error for documents that do not fill one sample of `sequence_length` + 1 tokens."""
    found = f"{documents:,} of {of:,} documents in {prefix} hold {tokens:,} tokens"
    return DataError(
        f"{split} data is smaller than one sample: {found}, "
        f"a sample takes {sequence_length + 1:,} (--seq-length {sequence_length} and one); give it a larger share "
        "of the documents (--split), more data, or shorter sequences"
    )


def _refuse_small(header: Header, source: Source, split: str, sequence_length: int) -> None:
    first, last = source.documents(header.sequences)
    tokens = tokens_of(header, first, last, enough=sequence_length + 1)
    if tokens < sequence_length + 1:
        raise too_small(split, header.prefix, last - first, header.sequences, tokens, sequence_length)


def tokens_of(header: Header, first: int, last: int, enough: int) -> int:
    """Tokens of sequences [first, last), counted until there are `enough`."""
    total = 0
    with idx_path(header.prefix).open("rb") as file:
        file.seek(header.lengths_at + 4 * first)
        while first < last and total < enough:
            lengths = array("i", file.read(4 * min(_PIECE, last - first)))
            first += len(lengths)
            total += sum(lengths)
    return total
