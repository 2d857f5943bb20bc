"""`python -m trainer.data.inspection [PREFIX...]`, or `--samples A:B --world-size N -- OPTIONS`: inspect data.

For prefixes it prints the contents. For a training, whose OPTIONS are those of `trainer.pretrain_gpt`, it prints a
range of samples or iterations, or the use of each data set so far. It writes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainer.core.console import complain, printable
from trainer.data.build import build_datasets
from trainer.data.gpt_dataset import BlendedDataset, GPTDataset
from trainer.data.index_cache import IndexCache
from trainer.data.indexed import IndexedTokens
from trainer.data.program import aligned, run_program
from trainer.data.sample_order import sample_order
from trainer.formats.checkpoint.batch_history import BatchHistory
from trainer.formats.checkpoint.changes import training_changes
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.checkpoint.starting import manifest_at_start, parse_to_start
from trainer.formats.data.data_inspected import (
    EpochEnd,
    InspectedSet,
    ReadPiece,
    ReadSample,
    ReadSamples,
    RealisedMixture,
    RealisedSource,
    SequenceLengths,
    SetNotes,
)
from trainer.formats.data.data_sources import groups
from trainer.formats.data.index_header import bin_path, idx_path
from trainer.formats.data.vocabulary_files import read_notes, tokenizer_path
from trainer.formats.errors import DataError
from trainer.formats.json_text import printed_json_text
from trainer.recipe.lengths import BEGINNING, Lengths
from trainer.recipe.options import Options

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class RunOrder:
    """The samples of each iteration. consumed: samples, by the checkpoint that the training resumes from."""

    dataset: GPTDataset | BlendedDataset
    history: BatchHistory
    iterations: int  # of the whole training
    consumed: int
    is_checkpoints_order: bool | None  # None: there is no checkpoint, or it does not record it

    @classmethod
    def of(cls, options: Options) -> RunOrder:
        """Return the order of a training with these options. Raises DataError, CheckpointError and ValueError."""
        manifest = manifest_at_start(options)
        lengths = Lengths.of(options, manifest or BEGINNING)
        data = build_datasets(
            options, lengths.samples_to_read, 0, 0, cache=lambda folders: IndexCache(folders, keeps=False)
        )
        if not isinstance(data.train, GPTDataset | BlendedDataset):
            raise DataError("the training reads no sample")
        return cls(
            data.train,
            BatchHistory.of(options, manifest),
            lengths.train_iterations,
            manifest.consumed_train_samples if manifest else 0,
            _is_its_order(manifest, data.train),
        )

    @property
    def end(self) -> int:
        """Samples consumed at the training's end."""
        return self.history.samples_after(self.iterations)

    @property
    def sources(self) -> Sequence[GPTDataset]:
        """The data sets, in the blend's order."""
        return self.dataset.sources if isinstance(self.dataset, BlendedDataset) else (self.dataset,)

    def source_of(self, sample: int) -> tuple[GPTDataset, int]:
        """Return the data set of the sample, and the place there."""
        if isinstance(self.dataset, BlendedDataset):
            number, place = self.dataset.source_of(sample)
            return self.dataset.sources[number], place
        return self.dataset, sample

    def samples_in(self, text: str) -> tuple[int, int]:
        """Parse `A:B`: from A samples consumed to B. Raises DataError."""
        first, end = _range(text, "--samples", "from A samples consumed to B, with A below B")
        if not first < end:
            raise DataError(f"--samples {text}: the end must be after the start; expected A:B with A below B")
        if end > self.end:
            raise DataError(f"--samples {text}: the training ends with {self.end:,} samples consumed")
        return first, end

    def samples_of_iterations(self, text: str) -> tuple[int, int]:
        """Parse `A:B` as iterations, both included and counted from 1, and return their samples. Raises DataError."""
        first, last = _range(text, "--iterations", "iterations A to B, both included, counted from 1")
        if not 1 <= first <= last:
            raise DataError(f"--iterations {text}: expected A:B with 1 <= A <= B; both are included, counted from 1")
        if last > self.iterations:
            raise DataError(f"--iterations {text}: the training has {self.iterations:,} iterations")
        return self.history.samples_after(first - 1), self.history.samples_after(last)


def _is_its_order(manifest: Manifest | None, dataset: GPTDataset | BlendedDataset) -> bool | None:
    if manifest is None or manifest.training.get("sample_order") is None:
        return None
    return not training_changes(manifest, {"sample_order": sample_order(dataset)})


def _range(text: str, option: str, means: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not (colon and first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise DataError(f"{option} {text}: expected A:B, two whole numbers: {means}")
    return int(first), int(last)


def realised_mixture(order: RunOrder, up_to: int | None) -> RealisedMixture:
    """Return the mixture of the first `up_to` samples; None: those of the checkpoint, or all without one.

    Raises DataError for more samples than the training has.
    """
    if up_to is None:
        up_to = order.consumed or order.end
    if not 0 <= up_to <= order.end:
        raise DataError(f"--mixture {up_to}: the training ends with {order.end:,} samples consumed")
    skipped = order.history.skipped_samples(up_to)
    sources = [_realised(order, number, up_to, skipped) for number in range(len(order.sources))]
    trained = sum(one.samples for one in sources)
    return RealisedMixture(
        up_to=up_to,
        iteration=order.history.known_iteration_of(up_to - 1) if up_to else None,
        end_sample=order.end,
        samples=trained,
        skipped_samples=up_to - trained,
        sequence_length=order.dataset.sequence_length,
        is_checkpoints_order=order.is_checkpoints_order,
        sources=sources,
    )


def _realised(order: RunOrder, number: int, up_to: int, skipped: list[tuple[int, int]]) -> RealisedSource:
    source = order.sources[number]
    places = _places(order, number)
    read = int(np.searchsorted(places, up_to))
    left_out = sum(int(np.searchsorted(places, last) - np.searchsorted(places, first)) for first, last in skipped)
    trained_in_all = up_to - sum(last - first for first, last in skipped)
    tokens = source.tokens_per_epoch
    return RealisedSource(
        data=source.prefix,
        first_document=source.first,
        end_document=source.last,
        tokens_per_epoch=tokens,
        asked=order.dataset.weights[number] if isinstance(order.dataset, BlendedDataset) else 1.0,
        realised=(read - left_out) / trained_in_all if trained_in_all else 0.0,
        samples=read - left_out,
        skipped_samples=left_out,
        epochs=read * source.sequence_length / tokens,
        epoch_ends=_epoch_ends(places, source, tokens, order.history),
    )


def _places(order: RunOrder, number: int) -> NDArray[np.int64]:
    """Return the training's samples from the data set, up to the training's end."""
    if isinstance(order.dataset, BlendedDataset):
        return np.flatnonzero(order.dataset.dataset_index[: order.end] == number)
    return np.arange(order.end)


def _epoch_ends(places: NDArray[np.int64], source: GPTDataset, tokens: int, history: BatchHistory) -> list[EpochEnd]:
    """Return the ends of epochs, which `plan_epochs` counts: the last token of all has no successor."""
    found = []
    epoch = 1
    while (samples := (epoch * tokens - 1) // source.sequence_length) <= len(places):
        if samples:
            last = int(places[samples - 1])
            found.append(EpochEnd(epoch=epoch, samples=last + 1, iteration=history.known_iteration_of(last)))
        epoch += 1
    return found


@dataclass(frozen=True)
class Reader:
    """A decoder of tokens. tokenizer: None without one; `path` is its source."""

    tokenizer: Tokenizer | None = None
    path: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Reader:
        """Return a reader with the options' tokenizer, or the one noted next to the data. Problems go to stderr."""
        try:
            return _of_options(options) or _of_notes(options) or cls()
        except (DataError, ImportError) as error:
            complain(f"warning: tokens are printed as numbers, because no tokenizer was found: {printable(str(error))}")
            return cls()

    def text(self, tokens: list[int]) -> str | None:
        """Return the tokens as text, with special ones. An incomplete character at either end is U+FFFD."""
        if self.tokenizer is None:
            return None
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False))


def read_samples(order: RunOrder, reader: Reader, first: int, end: int) -> Iterator[ReadSample]:
    """Yield the samples from `first` consumed to `end`, in order."""
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
    """Return the first tokenizer noted next to the training data. Raises DataError if it has changed since."""
    from trainer.data import tokenizer as bpe

    for source in (source for group in groups(options, "train") for source in group.sources):
        noted = read_notes(source.prefix)
        if noted is None or not Path(noted.tokenizer).is_file():
            continue
        tokenizer = bpe.load(Path(noted.tokenizer))
        found = hashlib.sha256(tokenizer.to_str(pretty=True).encode()).hexdigest()
        if noted.tokenizer_sha256 not in (None, found):
            raise DataError(
                f"{noted.tokenizer} is not the tokenizer of {source.prefix}: its SHA-256 is {found}, "
                f"expected {noted.tokenizer_sha256}"
            )
        return Reader(tokenizer, noted.tokenizer)
    return None


_SHARES = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)


def inspect_set(prefix: str) -> InspectedSet:
    """Read every length and offset of a set, but no token. Raises DataError for missing or impossible ones."""
    data = IndexedTokens(prefix)
    data.check_every_entry()
    noted = read_notes(prefix)
    return InspectedSet(
        data=prefix,
        documents=len(data.document_indices) - 1,
        sequences=len(data),
        tokens=data.header.tokens,
        empty=int(np.count_nonzero(data.lengths == 0)),
        dtype=data.header.type_name,
        bin_bytes=Path(bin_path(prefix)).stat().st_size,
        idx_bytes=Path(idx_path(prefix)).stat().st_size,
        lengths=_lengths(data.lengths) if len(data) else None,
        notes=None
        if noted is None
        else SetNotes(
            vocab_size=noted.vocab_size,
            eod=noted.eod,
            tokenizer=noted.tokenizer,
            tokenizer_sha256=noted.tokenizer_sha256,
        ),
    )


def _lengths(lengths: NDArray[np.int32]) -> SequenceLengths:
    found = np.quantile(lengths, _SHARES, method="inverted_cdf").tolist()
    shortest, p10, median, p90, p99, longest = (int(one) for one in found)
    mean = float(lengths.mean(dtype=np.float64))
    return SequenceLengths(shortest=shortest, p10=p10, median=median, p90=p90, p99=p99, longest=longest, mean=mean)


#: Tokens in one JSON text.
MOST_JSON_TOKENS = 20_000_000


def parser() -> argparse.ArgumentParser:
    """Return the program's options; `opsctl data inspect` has the same."""
    result = argparse.ArgumentParser(
        "python -m trainer.data.inspection", description="What is in data files.", allow_abbrev=False
    )
    what = result.add_mutually_exclusive_group()
    what.add_argument("--samples", metavar="A:B", help="samples of a training: from A samples consumed to B")
    what.add_argument(
        "--iterations", metavar="A:B", help="samples of these iterations of a training, both included, from 1"
    )
    what.add_argument("--mixture", metavar="UP_TO", nargs="?", const="", help="the use of each data set in a training")
    result.add_argument("--tokens", action="store_true", help="print tokens as numbers")
    result.add_argument("--width", type=int, default=200, help="characters of each sample, 0 for all")
    result.add_argument("--world-size", type=int, default=1, help="the number of ranks of the training")
    result.add_argument("--json", action="store_true", help="print JSON with schema_version")
    result.add_argument("words", nargs="*", metavar="PREFIX", help="or after --: the options of the training")
    return result


def main(argv: list[str] | None = None) -> int:
    """Return 0 on success, 1 after a failure, 2 for wrong usage or data, 130 if interrupted."""
    arguments = parser().parse_args(argv)
    return run_program(lambda: _inspect(arguments), "interrupted")


def _inspect(arguments: argparse.Namespace) -> int:
    if arguments.samples is None and arguments.iterations is None and arguments.mixture is None:
        return _sets(arguments)
    options = parse_to_start(arguments.words, arguments.world_size)
    order = RunOrder.of(options)
    if order.is_checkpoints_order is False:
        complain(
            "warning: the latest checkpoint's training read its samples in another order: this is the order "
            "of the current options"
        )
    if arguments.mixture is not None:
        mixture = realised_mixture(order, _up_to(arguments.mixture))
        _print(arguments, "mixture", mixture, lambda: _mixture_lines(mixture))
        return 0
    if arguments.samples is not None:
        first, end = order.samples_in(arguments.samples)
    else:
        first, end = order.samples_of_iterations(arguments.iterations)
    return _samples(arguments, order, Reader() if arguments.tokens else Reader.of(options), first, end)


def _sets(arguments: argparse.Namespace) -> int:
    if not arguments.words:
        raise DataError("nothing to inspect: give prefixes of .bin/.idx pairs")
    found = [inspect_set(prefix) for prefix in arguments.words]
    _print(arguments, "data_sets", found, lambda: (line for one in found for line in _set_lines(one)))
    return 0


def _samples(arguments: argparse.Namespace, order: RunOrder, reader: Reader, first: int, end: int) -> int:
    read = read_samples(order, reader, first, end)
    if not arguments.json:
        for one in read:
            print("\n".join(_sample_lines(one, arguments.width)), flush=True)
        return 0
    tokens = (end - first) * (order.dataset.sequence_length + 1)
    if tokens > MOST_JSON_TOKENS:
        raise DataError(
            f"{end - first:,} samples are {tokens:,} tokens, more than fit in one JSON text "
            f"({MOST_JSON_TOKENS:,}): request fewer at a time"
        )
    shown = ReadSamples(
        first_sample=first,
        end_sample=end,
        tokenizer=reader.path,
        is_checkpoints_order=order.is_checkpoints_order,
        samples=list(read),
    )
    sys.stdout.write(printed_json_text("samples", shown))
    return 0


def _print(arguments: argparse.Namespace, key: str, value: Any, lines: Any) -> None:
    if arguments.json:
        sys.stdout.write(printed_json_text(key, value))
    else:
        print("\n".join(lines()))


def _up_to(text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit()):
        raise DataError(f"--mixture {text}: expected a number of samples consumed")
    return int(text) if text else None


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


def _sample_lines(one: ReadSample, width: int) -> Iterator[str]:
    pieces = " ".join(f"{piece.document}[{piece.start}:{piece.stop}]" for piece in one.pieces)
    skipped = " (skipped)" if one.skipped else ""
    yield f"sample {one.sample}, iteration {one.iteration}{skipped}, {printable(one.data)}: {pieces}"
    text = " ".join(map(str, one.tokens)) if one.text is None else printable(one.text)
    yield f"  {text if not width or len(text) <= width else f'{text[: width - 1]}…'}"


def _mixture_lines(mixture: RealisedMixture) -> list[str]:
    head = ("data set", "samples", "tokens", "asked", "realised", "epochs", "epochs end at iteration")
    rows: list[tuple[str, ...]] = [head, *(_mixture_row(one, mixture.sequence_length) for one in mixture.sources)]
    skipped = f", {mixture.skipped_samples:,} of them skipped" if mixture.skipped_samples else ""
    at = "" if mixture.iteration is None else f" (iteration {mixture.iteration:,})"
    return [
        *aligned(rows),
        f"of {mixture.up_to:,} samples consumed{at}{skipped}; the training ends with {mixture.end_sample:,}",
    ]


def _mixture_row(one: RealisedSource, sequence_length: int) -> tuple[str, ...]:
    ends = ["?" if end.iteration is None else str(end.iteration) for end in one.epoch_ends]
    shown = " ".join(ends) if len(ends) <= 4 else f"{' '.join(ends[:3])} … {ends[-1]}"
    shares = f"{one.asked:.4%}", f"{one.realised:.4%}"
    tokens = f"{one.samples * sequence_length:,}"
    return printable(one.data), f"{one.samples:,}", tokens, *shares, f"{one.epochs:.2f}", shown or "-"


if __name__ == "__main__":
    sys.exit(main())
