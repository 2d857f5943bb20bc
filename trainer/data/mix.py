"""`python -m trainer.data.mix --output OUT --alpha A -- PREFIX...`: write weighted split files for many data sets.

`OUT.train.txt`, `OUT.valid.txt` and `OUT.test.txt` are what the options `--SPLIT-weighted-split-paths-path` read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainer.core.console import complain, printable
from trainer.core.files import make_folder, write_atomically
from trainer.data.mixing import USUAL_RANGES, Asked, groups_of, mix, parse_range, read_ratios
from trainer.data.program import aligned, run_program
from trainer.formats.data.data_inspected import MixedData, MixedPart, MixedSet, SplitFiles
from trainer.formats.data.data_sources import file_text
from trainer.formats.errors import DataError
from trainer.formats.json_text import printed_json_text
from trainer.recipe.data_options import SPLITS

NONE = "none"


def parser() -> argparse.ArgumentParser:
    """Return the program's options; `opsctl data mix` has the same."""
    result = argparse.ArgumentParser(
        "python -m trainer.data.mix", description="Write weighted split files for many data sets.", allow_abbrev=False
    )
    result.add_argument("prefixes", nargs="*", metavar="PREFIX", help="after --: each of a .bin/.idx pair")
    result.add_argument("--output", required=True, help="files are named OUTPUT.SPLIT.txt")
    how = result.add_mutually_exclusive_group(required=True)
    how.add_argument("--alpha", type=float, help="weights are tokens to the power of this")
    how.add_argument("--ratios", help="a JSON list of dataset_path and ratio, instead of PREFIX")
    for split, (start, end) in USUAL_RANGES.items():
        result.add_argument(f"--{split}", metavar="START:END", default=f"{start:g}:{end:g}", help="or none")
    result.add_argument("--each", action="store_true", help="also evaluate on each set alone")
    result.add_argument("--train-tokens", type=int, help="tokens of the whole training")
    result.add_argument("--train-samples", type=int, help="samples of the whole training, with --seq-length")
    result.add_argument("--seq-length", type=int, help="tokens of a sample")
    result.add_argument("--most-epochs", type=float, default=4.0, help="warn above this number of passes")
    result.add_argument("--overwrite", action="store_true", help="replace existing files")
    result.add_argument("--dry-run", action="store_true", help="write nothing")
    result.add_argument("--json", action="store_true", help="print JSON with schema_version")
    return result


def main(argv: list[str] | None = None) -> int:
    """Return 0 on success, 1 after a failure, 2 for wrong usage or data, 130 if interrupted."""
    arguments = parser().parse_args(argv)
    return run_program(lambda: _mix(arguments), "interrupted; each file is either the old or the new one")


def _mix(arguments: argparse.Namespace) -> int:
    asked = _asked(arguments)
    sets = mix(asked)
    paths = {split: Path(f"{Path(arguments.output).absolute()}.{split}.txt") for split in asked.ranges}
    texts = {
        path: file_text(groups_of(sets, split, each=arguments.each and split != "train"))
        for split, path in paths.items()
    }
    _refuse_existing(texts, arguments.overwrite)
    if not arguments.dry_run:
        for path, text in texts.items():
            make_folder(path.parent)
            write_atomically(path, text)
    mixed = MixedData(
        alpha=asked.alpha,
        train_tokens=asked.tokens,
        most_epochs=asked.most_epochs,
        sets=sets,
        files=SplitFiles(
            train=str(paths["train"]),
            valid=str(paths["valid"]) if "valid" in paths else None,
            test=str(paths["test"]) if "test" in paths else None,
        ),
        dry_run=arguments.dry_run,
    )
    if arguments.json:
        sys.stdout.write(printed_json_text("mixed", mixed))
    else:
        print("\n".join(_report(mixed)))
    for one in sets:
        if one.over_limit:
            complain(
                f"warning: {printable(one.data)} is used for {one.epochs:.1f} passes, more than "
                f"{asked.most_epochs:g} (--most-epochs)"
            )
    return 0


def _asked(arguments: argparse.Namespace) -> Asked:
    """Return the requested mixture. Raises DataError if options contradict each other."""
    prefixes, ratios = list(arguments.prefixes), []
    if arguments.ratios is not None:
        if prefixes:
            raise DataError(f"--ratios names the data sets: leave {prefixes[0]} out, or give --alpha instead")
        given = read_ratios(Path(arguments.ratios))
        prefixes, ratios = [one.dataset_path for one in given], [one.ratio for one in given]
    for name in ("train_tokens", "train_samples", "seq_length"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise DataError(f"--{name.replace('_', '-')} {value}: must be at least 1")
    if not arguments.most_epochs > 0:
        raise DataError(f"--most-epochs {arguments.most_epochs:g}: must be above 0")
    ranges = {split: getattr(arguments, split) for split in SPLITS}
    if ranges["train"] == NONE:
        raise DataError("--train none: training needs a part, like 0:0.949")
    return Asked(
        prefixes=tuple(str(Path(prefix).absolute()) for prefix in prefixes),
        ranges={split: parse_range(text, split) for split, text in ranges.items() if text != NONE},
        alpha=arguments.alpha,
        ratios=tuple(ratios),
        tokens=_tokens(arguments),
        sequence_length=arguments.seq_length,
        most_epochs=arguments.most_epochs,
    )


def _tokens(arguments: argparse.Namespace) -> int | None:
    """Return the tokens of the whole training."""
    if arguments.train_samples is None:
        return None if arguments.train_tokens is None else int(arguments.train_tokens)
    if arguments.train_tokens is not None:
        raise DataError("--train-samples and --train-tokens both give the length of the training: use one")
    if arguments.seq_length is None:
        raise DataError("--train-samples needs --seq-length, the tokens of a sample")
    return int(arguments.train_samples * arguments.seq_length)


def _refuse_existing(texts: dict[Path, str], overwrite: bool) -> None:
    """Raise DataError if a file exists with other contents: a training may be reading it."""
    for path, text in texts.items():
        if not overwrite and path.exists() and path.read_bytes() != text.encode():
            raise DataError(f"{path} exists with other contents; give --overwrite, or another --output")


def _report(mixed: MixedData) -> list[str]:
    """Return the table for people, and the files' paths."""
    head = ("data set", "documents", "tokens", "of all", "share", "epochs", *SPLITS)
    rows: list[tuple[str, ...]] = [head, *(_row(one) for one in mixed.sets)]
    total = sum(one.documents for one in mixed.sets), sum(one.tokens for one in mixed.sets)
    rows.append(("all", f"{total[0]:,}", f"{total[1]:,}", "100.00%", "100.00%", "", "", "", ""))
    files = [path for path in (mixed.files.train, mixed.files.valid, mixed.files.test) if path is not None]
    verb = "would write" if mixed.dry_run else "wrote"
    parts = "train, valid and test: documents of each part"
    length = "" if mixed.train_tokens is None else f"; epochs: of {mixed.train_tokens:,} tokens in all"
    return [*aligned(rows), f"{parts}{length}", *(f"{verb} {printable(path)}" for path in files)]


def _row(one: MixedSet) -> tuple[str, ...]:
    epochs = "" if one.epochs is None else f"{one.epochs:.2f}{'!' if one.over_limit else ''}"
    shares = f"{one.size_share:.2%}", f"{one.share:.2%}"
    parts = (_documents(part) for part in (one.train, one.valid, one.test))
    return printable(one.data), f"{one.documents:,}", f"{one.tokens:,}", *shares, epochs, *parts


def _documents(part: MixedPart | None) -> str:
    return NONE if part is None else f"{part.documents:,}"


if __name__ == "__main__":
    sys.exit(main())
