"""Whether a run's data can be trained on, before a job waits a week to find out.

Needs nothing but the standard library.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from trainer.formats.data_sources import Source, groups
from trainer.formats.errors import DataError
from trainer.formats.index_header import Header, idx_path, read_header
from trainer.recipe.data_options import SPLITS

#: Lengths read at a time.
_PIECE = 1 << 20


def data_errors(options: Mapping[str, Any], splits: tuple[str, ...] = SPLITS) -> list[str]:
    """What is wrong with the data that `options` name, one line each; none when it can be trained on.

    Looks for missing, foreign and cut-short files, and for sources that hold less than one sample.
    """
    errors: list[str] = []
    headers: dict[str, Header | None] = {}
    for split in splits:
        try:
            sources = [source for group in groups(options, split) for source in group.sources]
        except DataError as error:
            errors.append(str(error))
            continue
        for source in sources:
            try:
                if source.prefix not in headers:
                    headers[source.prefix] = None
                    headers[source.prefix] = read_header(source.prefix)
                header = headers[source.prefix]
                if header is not None:
                    _refuse_small(header, source, split, options["seq_length"])
            except DataError as error:
                errors.append(str(error))
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
    tokens = _tokens(header, first, last, enough=sequence_length + 1)
    if tokens < sequence_length + 1:
        raise too_small(split, header.prefix, last - first, header.sequences, tokens, sequence_length)


def _tokens(header: Header, first: int, last: int, enough: int) -> int:
    """Tokens of sequences [first, last), counted until there are `enough`."""
    total = 0
    with idx_path(header.prefix).open("rb") as file:
        file.seek(header.lengths_at + 4 * first)
        while first < last and total < enough:
            lengths = array("i", file.read(4 * min(_PIECE, last - first)))
            first += len(lengths)
            total += sum(lengths)
    return total
