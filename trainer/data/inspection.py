"""`python -m trainer.data.inspection [PREFIX...]`, or `--iterations A:B --world-size N -- OPTIONS`: inspect data.

For prefixes it prints the contents. For a training, whose OPTIONS are those of `trainer.pretrain_gpt`, it prints the
samples of some iterations. It writes nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.core.console import complain, printable
from trainer.data.build import build_datasets
from trainer.data.gpt_dataset import BlendedDataset, GPTDataset
from trainer.data.index_cache import IndexCache
from trainer.data.indexed import IndexedTokens
from trainer.data.program import run_program
from trainer.data.sample_order import sample_order
from trainer.formats.checkpoint.batch_history import BatchHistory
from trainer.formats.checkpoint.changes import training_changes
from trainer.formats.checkpoint.starting import manifest_at_start, parse_to_start
from trainer.formats.data.data_inspected import (
    InspectedSet,
    ReadPiece,
    ReadSample,
    ReadSamples,
    SequenceLengths,
    SetNotes,
)
from trainer.formats.data.data_sources import groups
from trainer.formats.data.index_header import bin_path, idx_path
from trainer.formats.data.vocabulary_files import read_notes
from trainer.formats.errors import DataError
from trainer.formats.json_text import printed_json_text
from trainer.recipe.lengths import BEGINNING, Lengths
from trainer.recipe.options import Options

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SHARES = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)
#: Tokens in one JSON text.
MOST_JSON_TOKENS = 20_000_000
#: Characters of a sample on the screen.
_WIDTH = 200


def parser() -> argparse.ArgumentParser:
    """Return the program's options; `opsctl data inspect` has the same."""
    result = argparse.ArgumentParser(
        "python -m trainer.data.inspection", description="What is in data files.", allow_abbrev=False
    )
    result.add_argument("--iterations", metavar="A:B", help="samples of these iterations, both included, from 1")
    result.add_argument("--world-size", type=int, default=1, help="the number of ranks of the training")
    result.add_argument("--json", action="store_true", help="print JSON with schema_version")
    result.add_argument("words", nargs="*", metavar="PREFIX", help="or after --: the options of the training")
    return result


def main(argv: list[str] | None = None) -> int:
    """Return 0 on success, 1 after a failure, 2 for wrong usage or data, 130 if interrupted."""
    arguments = parser().parse_args(argv)
    work = _samples if arguments.iterations is not None else _sets
    return run_program(lambda: work(arguments), lambda: "nothing is written")


def _sets(arguments: argparse.Namespace) -> None:
    if not arguments.words:
        raise DataError("nothing to inspect: give prefixes of .bin/.idx pairs")
    found = [inspect_set(prefix) for prefix in arguments.words]
    if arguments.json:
        sys.stdout.write(printed_json_text("data_sets", found))
    else:
        print("\n".join(line for one in found for line in _set_lines(one)))


def inspect_set(prefix: str) -> InspectedSet:
    """Read every length and offset of a set, but no token. Raises DataError for missing or impossible ones."""
    data = IndexedTokens(prefix)
    data.check_every_entry()
    noted, lengths = read_notes(prefix), None
    if len(data):
        found = np.quantile(data.lengths, _SHARES, method="inverted_cdf").tolist()
        names = ("shortest", "p10", "median", "p90", "p99", "longest")
        shares = dict(zip(names, map(int, found), strict=True))
        lengths = SequenceLengths(**shares, mean=float(data.lengths.mean(dtype=np.float64)))
    return InspectedSet(
        data=prefix,
        documents=len(data.document_indices) - 1,
        sequences=len(data),
        tokens=data.header.tokens,
        empty=int(np.count_nonzero(data.lengths == 0)),
        dtype=data.header.type_name,
        bin_bytes=bin_path(prefix).stat().st_size,
        idx_bytes=idx_path(prefix).stat().st_size,
        lengths=lengths,
        notes=None
        if noted is None
        else SetNotes(**{name: getattr(noted, name) for name in SetNotes.__struct_fields__}),
    )


def _set_lines(one: InspectedSet) -> Iterator[str]:
    yield printable(one.data)
    sequences = "" if one.sequences == one.documents else f" in {one.sequences:,} sequences"
    empty = f", {one.empty:,} without a token" if one.empty else ""
    yield f"  documents  {one.documents:,}{sequences}{empty}"
    yield f"  tokens     {one.tokens:,}, {one.dtype}, {one.bin_bytes + one.idx_bytes:,} bytes with the index"
    if one.lengths is not None:
        at = one.lengths
        yield (
            f"  lengths    {at.shortest:,} to {at.longest:,}, mean {at.mean:,.1f}; 10 % up to {at.p10:,}, half up to "
            f"{at.median:,}, 90 % up to {at.p90:,}, 99 % up to {at.p99:,}"
        )
    if one.notes is None:
        yield "  tokenizer  no notes next to the data"
    else:
        vocabulary = "" if one.notes.vocab_size is None else f", vocabulary {one.notes.vocab_size:,}"
        end = "" if one.notes.eod is None else f", documents end with {one.notes.eod}"
        yield f"  tokenizer  {printable(one.notes.tokenizer)}{vocabulary}{end}"


@dataclass(frozen=True)
class _Training:
    """The samples of each iteration."""

    options: Options
    dataset: GPTDataset | BlendedDataset
    history: BatchHistory
    iterations: int  # of the whole training
    is_checkpoints_order: bool | None  # None: there is no checkpoint, or it does not record it

    @property
    def sources(self) -> Sequence[GPTDataset]:
        """The data sets, in the blend's order."""
        return self.dataset.sources if isinstance(self.dataset, BlendedDataset) else (self.dataset,)


def _training(arguments: argparse.Namespace) -> _Training:
    """Return the training with the given options. Raises DataError, CheckpointError and ValueError."""
    options = parse_to_start(arguments.words, arguments.world_size)
    manifest = manifest_at_start(options)
    lengths = Lengths.of(options, manifest or BEGINNING)
    data = build_datasets(
        options, lengths.samples_to_read, 0, 0, cache=lambda folders: IndexCache(folders, keeps=False)
    ).train
    if not isinstance(data, GPTDataset | BlendedDataset):
        raise DataError("the training reads no sample")
    is_checkpoints_order = None
    if manifest is not None and manifest.training.get("sample_order") is not None:
        is_checkpoints_order = not training_changes(manifest, {"sample_order": sample_order(data)})
    if is_checkpoints_order is False:
        complain(
            "warning: the latest checkpoint's training read its samples in another order: this is the order "
            "of the current options"
        )
    history = BatchHistory.of(options, manifest)
    return _Training(options, data, history, lengths.train_iterations, is_checkpoints_order)


def _samples(arguments: argparse.Namespace) -> None:
    training = _training(arguments)
    first, last = _iterations(arguments.iterations, training.iterations)
    start, end = training.history.samples_after(first - 1), training.history.samples_after(last)
    reader = Reader.of(training.options)
    read = _read_samples(training, reader, range(start, end))
    if not arguments.json:
        for one in read:
            print("\n".join(_sample_lines(one)), flush=True)
        return
    tokens = (end - start) * (training.dataset.sequence_length + 1)
    if tokens > MOST_JSON_TOKENS:
        raise DataError(
            f"{end - start:,} samples are {tokens:,} tokens, more than fit in one JSON text "
            f"({MOST_JSON_TOKENS:,}): request fewer at a time"
        )
    found = ReadSamples(
        first_sample=start,
        end_sample=end,
        tokenizer=reader.path,
        is_checkpoints_order=training.is_checkpoints_order,
        samples=list(read),
    )
    sys.stdout.write(printed_json_text("samples", found))


def _iterations(text: str, most: int) -> tuple[int, int]:
    """Parse `A:B` or `A`. Raises DataError."""
    match = re.fullmatch(r"([0-9]{1,18})(?::([0-9]{1,18}))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise DataError(f"--iterations {text}: expected A:B with 1 <= A <= B; both are included, counted from 1")
    if last > most:
        raise DataError(f"--iterations {text}: the training has {most:,} iterations")
    return first, last


def _read_samples(training: _Training, reader: Reader, samples: Sequence[int]) -> Iterator[ReadSample]:
    """Yield these samples of a training, by the samples consumed before each."""
    for sample in samples:
        number, place = 0, sample
        if isinstance(training.dataset, BlendedDataset):
            number, place = training.dataset.source_of(sample)
        source, iteration = training.sources[number], training.history.iteration_of(sample)
        tokens = source[place].tolist()
        yield ReadSample(
            sample=sample,
            iteration=iteration,
            skipped=training.history.is_skipped(iteration),
            data=source.prefix,
            pieces=[
                ReadPiece(document=document, start=start, stop=stop) for document, start, stop in source.pieces(place)
            ],
            tokens=tokens,
            text=reader.text(tokens),
        )


def _sample_lines(one: ReadSample) -> Iterator[str]:
    pieces = " ".join(f"{piece.document}[{piece.start}:{piece.stop}]" for piece in one.pieces)
    skipped = " (skipped)" if one.skipped else ""
    yield f"sample {one.sample}, iteration {one.iteration}{skipped}, {printable(one.data)}: {pieces}"
    text = " ".join(map(str, one.tokens)) if one.text is None else printable(one.text)
    yield f"  {text if len(text) <= _WIDTH else f'{text[: _WIDTH - 1]}…'}"


@dataclass(frozen=True)
class Reader:
    """A decoder of tokens. tokenizer: None without one; `path` is its source."""

    tokenizer: Tokenizer | None = None
    path: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Reader:
        """Return a reader with the options' tokenizer, or the one noted next to the data. Problems go to stderr."""
        try:
            return cls(*(_found_tokenizer(options) or ()))
        except (DataError, ImportError) as error:
            complain(f"warning: tokens are printed as numbers, because no tokenizer was found: {printable(str(error))}")
            return cls()

    def text(self, tokens: list[int]) -> str | None:
        """Return the tokens as text, with special ones. An incomplete character at either end is U+FFFD."""
        if self.tokenizer is None:
            return None
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False))


def _found_tokenizer(options: Mapping[str, Any]) -> tuple[Tokenizer, str] | None:
    """Return the options' tokenizer, or the first one noted next to the training data, and its path."""
    from trainer.data import tokenizer as bpe

    if named := bpe.named_by(options):
        return named[0], str(named[1])
    prefixes = (source.prefix for group in groups(options, "train") for source in group.sources)
    notes = (noted for prefix in prefixes if (noted := read_notes(prefix)) and Path(noted.tokenizer).is_file())
    return next(((bpe.noted_by(noted), noted.tokenizer) for noted in notes), None)


if __name__ == "__main__":
    sys.exit(main())
