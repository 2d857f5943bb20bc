"""`python -m trainer.data.inspection [PREFIX...]`, or `--samples A:B --world-size N -- OPTIONS`: looks into data.

Of prefixes it says what is in them. Of a training, whose OPTIONS are those of `trainer.pretrain_gpt`, it shows what is
in a range of its samples or iterations, or what it has had of each of its data sets. It writes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from trainer.core.console import complain, printable
from trainer.data.mixture import realised_mixture
from trainer.data.program import aligned, run_program
from trainer.data.read_samples import Reader, read_samples
from trainer.data.run_order import RunOrder
from trainer.data.set_facts import inspect_set
from trainer.formats.checkpoint.starting import parse_to_start
from trainer.formats.data.data_inspected import InspectedSet, ReadSample, ReadSamples, RealisedMixture, RealisedSource
from trainer.formats.errors import DataError
from trainer.formats.json_text import printed_json_text

#: Tokens that one JSON text may hold.
MOST_JSON_TOKENS = 20_000_000


def parser() -> argparse.ArgumentParser:
    """The program's options; `opsctl data inspect` has the same."""
    result = argparse.ArgumentParser(
        "python -m trainer.data.inspection", description="What is in data files.", allow_abbrev=False
    )
    what = result.add_mutually_exclusive_group()
    what.add_argument("--samples", metavar="A:B", help="of a training: from A samples consumed to B")
    what.add_argument("--iterations", metavar="A:B", help="of a training: what these read, both in, from 1")
    what.add_argument("--mixture", metavar="UP_TO", nargs="?", const="", help="of a training: what it has had of each")
    result.add_argument("--tokens", action="store_true", help="numbers, whatever tokenizer there is")
    result.add_argument("--width", type=int, default=200, help="characters of each sample, 0 for all of it")
    result.add_argument("--world-size", type=int, default=1, help="the ranks that the training has")
    result.add_argument("--json", action="store_true", help="print JSON with schema_version")
    result.add_argument("words", nargs="*", metavar="PREFIX", help="or after --: the training's own options")
    return result


def main(argv: list[str] | None = None) -> int:
    """0 done, 1 failed, 2 wrong usage or data, 130 interrupted."""
    arguments = parser().parse_args(argv)
    return run_program(lambda: _inspect(arguments), "interrupted")


def _inspect(arguments: argparse.Namespace) -> int:
    if arguments.samples is None and arguments.iterations is None and arguments.mixture is None:
        return _sets(arguments)
    options = parse_to_start(arguments.words, arguments.world_size)
    order = RunOrder.of(options)
    if order.is_checkpoints_order is False:
        complain(
            "warning: the latest checkpoint's training read its samples in another order: what follows is the order "
            "of the options as they are now"
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
        raise DataError("nothing to look into: give prefixes of .bin/.idx pairs")
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
            f"{end - first:,} samples are {tokens:,} tokens, more than one JSON text should hold "
            f"({MOST_JSON_TOKENS:,}): ask for fewer at a time"
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
        raise DataError(f"--mixture {text}: expected so many samples consumed, a whole number")
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
        yield "  tokenizer  nothing is noted beside the data"
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
