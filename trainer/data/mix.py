"""`python -m trainer.data.mix --output OUT --alpha A -- PREFIX...`: write weighted split files for many data sets.

`OUT.train.txt`, `OUT.valid.txt` and `OUT.test.txt` are what the options `--SPLIT-weighted-split-paths-path` read.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from trainer.core.console import complain, printable
from trainer.core.files import make_folder, write_atomically
from trainer.data.indexed import IndexedTokens
from trainer.data.program import aligned, run_program
from trainer.formats.data.data_inspected import MixedData, MixedPart, MixedSet, SplitFiles
from trainer.formats.data.data_sources import Group, Source, file_text
from trainer.formats.errors import DataError
from trainer.formats.json_text import printed_json_text
from trainer.recipe.data_options import SPLITS

NONE = "none"
#: The default shares of the documents for training, validation and test.
USUAL_RANGES = {"train": (0.0, 0.949), "valid": (0.949, 0.999), "test": (0.999, 1.0)}
#: More passes over a data set's training part are reported.
MOST_EPOCHS = 4.0
#: By split, START and END of the documents; a missing split gets none.
Ranges = Mapping[str, tuple[float, float]]


def parser() -> argparse.ArgumentParser:
    """Return the program's options; `opsctl data mix` has the same."""
    result = argparse.ArgumentParser(
        "python -m trainer.data.mix", description="Write weighted split files for many data sets.", allow_abbrev=False
    )
    result.add_argument("prefixes", nargs="*", metavar="PREFIX", help="after --: each of a .bin/.idx pair")
    result.add_argument("--output", required=True, help="files are named OUTPUT.SPLIT.txt")
    result.add_argument("--alpha", type=float, required=True, help="weights are tokens to the power of this")
    for split, (start, end) in USUAL_RANGES.items():
        result.add_argument(f"--{split}", metavar="START:END", default=f"{start:g}:{end:g}", help="or none")
    result.add_argument("--train-samples", type=int, help="samples of the whole training, with --seq-length")
    result.add_argument("--seq-length", type=int, help="tokens of a sample")
    result.add_argument("--overwrite", action="store_true", help="replace existing files")
    result.add_argument("--dry-run", action="store_true", help="write nothing")
    result.add_argument("--json", action="store_true", help="print JSON with schema_version")
    return result


def main(argv: list[str] | None = None) -> int:
    """Return 0 on success, 1 after a failure, 2 for wrong usage or data, 130 if interrupted."""
    arguments = parser().parse_args(argv)
    return run_program(lambda: _mix(arguments), lambda: "each file is either the old or the new one")


def _mix(arguments: argparse.Namespace) -> None:
    length, samples = arguments.seq_length, arguments.train_samples
    if samples is not None and length is None:
        raise DataError("--train-samples needs --seq-length, the tokens of a sample")
    if any(number is not None and number < 1 for number in (length, samples)):
        raise DataError("--train-samples and --seq-length must be at least 1")
    tokens = None if samples is None else samples * length
    ranges = {split: parse_range(text, split) for split in SPLITS if (text := getattr(arguments, split)) != NONE}
    sets = mix([str(Path(one).absolute()) for one in arguments.prefixes], ranges, arguments.alpha, tokens, length)
    paths = {split: Path(f"{Path(arguments.output).absolute()}.{split}.txt") for split in ranges}
    texts = {path: file_text([_group(sets, split)]) for split, path in paths.items()}
    for path, text in texts.items():
        # A training may be reading it.
        if not arguments.overwrite and path.exists() and path.read_bytes() != text.encode():
            raise DataError(f"{path} exists with other contents; give --overwrite, or another --output")
    if not arguments.dry_run:
        for path, text in texts.items():
            make_folder(path.parent)
            write_atomically(path, text)
    mixed = MixedData(
        alpha=arguments.alpha,
        train_tokens=tokens,
        most_epochs=MOST_EPOCHS,
        sets=sets,
        files=msgspec.convert({split: str(path) for split, path in paths.items()}, SplitFiles),
        dry_run=arguments.dry_run,
    )
    if arguments.json:
        sys.stdout.write(printed_json_text("mixed", mixed))
    else:
        print("\n".join(_report(mixed)))
    for one in sets:
        if one.over_limit:
            complain(f"warning: {printable(one.data)} is used for {one.epochs:.1f} passes, more than {MOST_EPOCHS:g}")


def parse_range(text: str, split: str) -> tuple[float, float]:
    """Parse `START:END`, shares of the documents. Raises DataError."""
    start_text, colon, end_text = text.partition(":")
    try:
        start, end = float(start_text), float(end_text)
    except ValueError:
        start, end = math.nan, math.nan
    if not colon or not 0 <= start < end <= 1:
        usual = "{:g}:{:g}".format(*USUAL_RANGES[split])
        or_none = "" if split == "train" else ", or none"
        raise DataError(f"--{split} {text}: expected START:END with 0 <= START < END <= 1, like {usual}{or_none}")
    return start, end


def shares_of(tokens: Sequence[int], alpha: float) -> list[float]:
    """Return tokens^alpha, scaled to add up to 1: with `alpha` 1 proportional to size, with 0 equal.

    Source: multinomial sampling of languages, Conneau and Lample 2019, arXiv 1901.07291, section 3.1.
    """
    scaled = [(count / max(tokens)) ** alpha for count in tokens]
    return [one / math.fsum(scaled) for one in scaled]


def mix(
    prefixes: Sequence[str], ranges: Ranges, alpha: float, tokens: int | None = None, sequence_length: int | None = None
) -> list[MixedSet]:
    """Return each data set with its share and parts. tokens: of the whole training. Raises DataError."""
    _refuse_wrong(prefixes, ranges, alpha)
    opened = [IndexedTokens(prefix) for prefix in prefixes]
    sizes = [data.header.tokens for data in opened]
    if empty := [prefix for prefix, size in zip(prefixes, sizes, strict=True) if not size]:
        raise DataError(f"{empty[0]} has no tokens; remove it from the mixture")
    found = []
    for data, share in zip(opened, shares_of(sizes, alpha), strict=True):
        data.check_every_entry()
        parts = {split: _part(data, split, *ranges[split], sequence_length or 0) for split in ranges}
        epochs = None if tokens is None else tokens * share / parts["train"].tokens
        found.append(
            MixedSet(
                data=data.prefix,
                documents=len(data),
                tokens=data.header.tokens,
                size_share=data.header.tokens / sum(sizes),
                share=share,
                epochs=epochs,
                over_limit=epochs is not None and epochs > MOST_EPOCHS,
                train=parts["train"],
                valid=parts.get("valid"),
                test=parts.get("test"),
            )
        )
    return found


def _refuse_wrong(prefixes: Sequence[str], ranges: Ranges, alpha: float) -> None:
    """Raise DataError for errors that are visible without files."""
    if not prefixes:
        raise DataError("no data set to mix: give prefixes of .bin/.idx pairs")
    if "train" not in ranges:
        raise DataError("--train none: training needs a part, like 0:0.949")
    if not 0 <= alpha <= 1:
        raise DataError(
            f"--alpha {alpha:g}: 0 (every set alike) to 1 (in proportion to their tokens); larger values would "
            "increase the share of large sets"
        )
    real = [str(Path(prefix).resolve()) for prefix in prefixes]
    twice = next((prefix for prefix, one in zip(prefixes, real, strict=True) if real.count(one) > 1), None)
    if twice is not None:
        raise DataError(f"{twice} is given twice")
    for one, other in itertools.combinations(ranges, 2):
        if max(ranges[one][0], ranges[other][0]) < min(ranges[one][1], ranges[other][1]):
            both = " and ".join("--{} {:g}:{:g}".format(split, *ranges[split]) for split in (one, other))
            raise DataError(f"{both} have documents in common: training must not use evaluation data")


def _part(data: IndexedTokens, split: str, start: float, end: float, sequence_length: int) -> MixedPart:
    first, last = Source(data.prefix, start, end, None).documents(len(data))
    tokens = int(data.lengths[first:last].sum(dtype=np.int64))
    if tokens < sequence_length + 1:
        raise DataError(
            f"--{split} {start:g}:{end:g} of {data.prefix} is {last - first:,} of {len(data):,} documents with "
            f"{tokens:,} tokens, one sample needs {sequence_length + 1:,}; give it a larger part or more data, or omit "
            "the set"
        )
    return MixedPart(start=start, end=end, documents=last - first, tokens=tokens)


def _group(sets: Sequence[MixedSet], split: str) -> Group:
    """Return the group of a split's file: all sets, mixed."""
    parts: list[MixedPart] = [getattr(one, split) for one in sets]
    sources = (Source(one.data, part.start, part.end, one.share) for one, part in zip(sets, parts, strict=True))
    return Group(split, tuple(sources))


def _report(mixed: MixedData) -> list[str]:
    """Return the table for people, and the files' paths."""
    rows: list[tuple[str, ...]] = [("data set", "documents", "tokens", "of all", "share", "epochs", *SPLITS)]
    for one in mixed.sets:
        epochs = "" if one.epochs is None else f"{one.epochs:.2f}{'!' if one.over_limit else ''}"
        parts = (NONE if part is None else f"{part.documents:,}" for part in (one.train, one.valid, one.test))
        shares = f"{one.size_share:.2%}", f"{one.share:.2%}"
        rows.append((printable(one.data), f"{one.documents:,}", f"{one.tokens:,}", *shares, epochs, *parts))
    documents, tokens = (sum(getattr(one, name) for one in mixed.sets) for name in ("documents", "tokens"))
    rows.append(("all", f"{documents:,}", f"{tokens:,}", "100.00%", "100.00%", "", "", "", ""))
    files = [path for split in SPLITS if (path := getattr(mixed.files, split)) is not None]
    verb = "would write" if mixed.dry_run else "wrote"
    length = "" if mixed.train_tokens is None else f"; epochs: of {mixed.train_tokens:,} tokens in all"
    head = f"train, valid and test: documents of each part{length}"
    return [*aligned(rows), head, *(f"{verb} {printable(path)}" for path in files)]


if __name__ == "__main__":
    sys.exit(main())
