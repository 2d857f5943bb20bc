"""What is in a range of a training's samples: which documents, which tokens, and their text where a tokenizer is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.core.console import complain, printable
from trainer.data.run_order import RunOrder
from trainer.formats.data.data_inspected import ReadPiece, ReadSample
from trainer.formats.data.data_notes import read_notes
from trainer.formats.data.data_sources import groups
from trainer.formats.data.vocabulary_files import tokenizer_path
from trainer.formats.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Reader:
    """Tokens to text. tokenizer: None where there is none; `path` is where it is from."""

    tokenizer: Tokenizer | None = None
    path: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Reader:
        """By the options' tokenizer, else by the one noted beside the data; what cannot be used is said on stderr."""
        try:
            return _of_options(options) or _of_notes(options) or cls()
        except (DataError, ImportError) as error:
            complain(
                f"warning: tokens as numbers, for there is no tokenizer to read them with: {printable(str(error))}"
            )
            return cls()

    def text(self, tokens: list[int]) -> str | None:
        """The tokens as text, special ones included; a half of a character at either end is U+FFFD."""
        if self.tokenizer is None:
            return None
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False))


def read_samples(order: RunOrder, reader: Reader, first: int, end: int) -> Iterator[ReadSample]:
    """The samples from `first` consumed to `end`, one after the other."""
    for sample in range(first, end):
        source, place = order.source_of(sample)
        iteration = order.history.iteration_of(sample)
        tokens = source[place].tolist()
        yield ReadSample(
            sample=sample,
            iteration=iteration,
            skipped=order.history.is_skipped(iteration),
            data=source.prefix,
            pieces=[
                ReadPiece(document=document, start=start, stop=stop) for document, start, stop in source.pieces(place)
            ],
            tokens=tokens,
            text=reader.text(tokens),
        )


def _of_options(options: Mapping[str, Any]) -> Reader | None:
    from trainer.data import tokenizer as bpe

    if options["tokenizer_name_or_path"]:
        path = tokenizer_path(str(options["tokenizer_name_or_path"]))
        return Reader(bpe.load(path), str(path))
    if options["vocab_file"] and options["merge_file"]:
        vocab = Path(options["vocab_file"])
        return Reader(bpe.load_vocab_and_merges(vocab, Path(options["merge_file"])), str(vocab))
    return None


def _of_notes(options: Mapping[str, Any]) -> Reader | None:
    """The first one noted beside the training data. Raises DataError where it has become another since."""
    from trainer.data import tokenizer as bpe

    for source in (source for group in groups(options, "train") for source in group.sources):
        noted = read_notes(source.prefix)
        if noted is None or not Path(noted.tokenizer).is_file():
            continue
        tokenizer = bpe.load(Path(noted.tokenizer))
        found = hashlib.sha256(tokenizer.to_str(pretty=True).encode()).hexdigest()
        if noted.tokenizer_sha256 not in (None, found):
            raise DataError(
                f"{noted.tokenizer} is not what {source.prefix} was made with: its SHA-256 is {found}, noted is "
                f"{noted.tokenizer_sha256}"
            )
        return Reader(tokenizer, noted.tokenizer)
    return None
