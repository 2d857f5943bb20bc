"""`opsctl data`: text to the trainer's data files, mixtures of them, and what a training makes of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import json_option, run_argument, run_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opsctl.run.config.expanded import ExpandedRun
    from opsctl.run.config.load import LoadedRun


@click.group()
def command() -> None:
    """Prepare, mix, index and inspect the trainer's data files."""


@command.command("prepare", cls=LongCommand)
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option("--output-prefix", metavar="P", required=True, help="Prefix of the files P_KEY_document.{bin,idx,json}.")
@click.option(
    "--tokenizer", metavar="DIR", help="tokenizer.json, a folder with it, or one with vocab.json and merges.txt."
)
@click.option(
    "--vocab-size",
    type=click.IntRange(min=257),
    metavar="N",
    help="Train a byte-level BPE of N tokens on INPUT [default: 32768].",
)
@click.option("--json-key", metavar="KEY", default="text", show_default=True, help="Key or column of the text.")
@click.option(
    "--append-eod/--no-append-eod",
    default=True,
    show_default=True,
    help="End each document with the end-of-document token.",
)
@click.option("--include", metavar="GLOB", multiple=True, help="In a folder, read only matching files (repeatable).")
@click.option(
    "--exclude", metavar="GLOB", multiple=True, help="In a folder, skip matching files and folders (repeatable)."
)
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Number of processes [default: one per core].")
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@json_option(data="trainer.formats.data.vocabulary_files.PreparedData")
def prepare(inputs: tuple[str, ...], append_eod: bool, **options: Any) -> int:
    """Convert text to Megatron's .bin/.idx data files.

    INPUT is a JSON-lines file (also gzip or zstd), a Parquet file, or a folder of such files or with one document per
    file, read in the order of their names. Files that are not UTF-8 text are skipped and counted. Without --tokenizer a
    byte-level BPE is trained on the text and saved next to the data as tokenizer.json. After a kill or an interruption
    the same command continues. The run file's data_path is then P_KEY_document.
    """
    from opsctl.cli.trainer_program import option_words, run_trainer_program
    from opsctl.run.state.background_progress import tell_progress

    if options["tokenizer"] and options["vocab_size"]:
        raise click.UsageError("--tokenizer brings its own vocabulary; leave out --vocab-size")
    eod = "--append-eod" if append_eod else "--no-append-eod"
    words = [eod, *option_words(options), "--", *inputs]
    needed = ("numpy", "tokenizers", "rich")
    return run_trainer_program("trainer.data.prepare", words, needed, steps=tell_progress)


@command.command("index", cls=LongCommand)
@run_argument
@click.option("--dry-run", is_flag=True, help="Print which files exist and which would be built; change nothing.")
@json_option(indexed="trainer.formats.data.data_inspected.IndexedData")
def index(run: str | None, **options: Any) -> int:
    """Build the sample order before the training starts.

    The training's nodes then do not wait for it. Uses the run file as it is now and the checkpoint from which the
    training would resume. Existing files are kept.
    """
    from opsctl.cli.trainer_program import option_words, run_trainer_program
    from opsctl.run.state.background_progress import tell_progress

    expanded = _expanded(run)
    words = option_words({"world_size": expanded.layout.world_size, **options})
    words += ["--", *expanded.arguments]
    return run_trainer_program("trainer.data.index", words, ("numpy",), steps=tell_progress)


@command.command("mix", cls=LongCommand, goes_on=False)
@click.argument("prefixes", metavar="[PREFIX]...", nargs=-1)
@click.option(
    "--output", metavar="P", required=True, help="Prefix of the files P.train.txt, P.valid.txt and P.test.txt."
)
@click.option(
    "--alpha",
    type=float,
    required=True,
    metavar="A",
    help="Exponent A of the shares, tokens^A: 1 by size, 0 all equal.",
)
@click.option(
    "--train", metavar="START:END", default="0:0.949", show_default=True, help="Share of the documents for training."
)
@click.option(
    "--valid", metavar="START:END", default="0.949:0.999", show_default=True, help="Share for validation, or none."
)
@click.option("--test", metavar="START:END", default="0.999:1", show_default=True, help="Share for testing, or none.")
@click.option("--train-samples", type=click.IntRange(min=1), metavar="N", help="Length of the training in samples.")
@click.option("--seq-length", type=click.IntRange(min=1), metavar="N", help="Tokens per sample.")
@click.option("--overwrite", is_flag=True, help="Replace existing files that differ.")
@click.option("--dry-run", is_flag=True, help="Print the table; write nothing.")
@run_option
@json_option(mixed="trainer.formats.data.data_inspected.MixedData")
def mix(prefixes: tuple[str, ...], run: str | None, **given: Any) -> int:
    """Write weighted split files that mix data sets.

    PREFIX names a .bin/.idx pair. The share of a data set is its tokens to the power of --alpha. --run takes the length
    of the training from that run. A run file names the written files as train_weighted_split_paths_path,
    valid_weighted_split_paths_path and test_weighted_split_paths_path.
    """
    from opsctl.cli.trainer_program import option_words, run_trainer_program

    if run is not None:
        if any(given[name] is not None for name in ("train_samples", "seq_length")):
            raise click.UsageError("--run gives the length of the training; remove the other length options")
        given |= _length_of(run)
    return run_trainer_program("trainer.data.mix", [*option_words(given), "--", *prefixes], ("numpy",))


@command.command("inspect", cls=LongCommand, goes_on=False)
@click.argument("prefixes", metavar="[PREFIX]...", nargs=-1)
@run_option
@click.option("--iterations", metavar="A:B", help="Print the samples of iterations A to B, inclusive, counted from 1.")
@json_option(
    data_sets=("list[trainer.formats.data.data_inspected.InspectedSet]", "of data sets"),
    samples=("trainer.formats.data.data_inspected.ReadSamples", "with `--iterations`"),
)
def inspect(prefixes: tuple[str, ...], run: str | None, iterations: str | None, as_json: bool) -> int:
    """Print the contents of data sets, or what a run reads.

    PREFIX names a data set; the default is the run's training data. --iterations prints the text of the samples and
    marks skipped ones.
    """
    from opsctl.cli.trainer_program import option_words, run_trainer_program

    words = option_words({"iterations": iterations})
    if prefixes and (words or run is not None):
        raise click.UsageError("give PREFIX or --iterations; --run is for what a run reads")
    arguments: Sequence[str] = prefixes
    if words:
        expanded = _expanded(run)
        words.append(f"--world-size={expanded.layout.world_size}")
        arguments = expanded.arguments
    words += option_words({"json": as_json})
    arguments = arguments or _training_prefixes(run)
    return run_trainer_program("trainer.data.inspection", [*words, "--", *arguments], ("numpy",))


def _training_prefixes(run: str | None) -> tuple[str, ...]:
    """Each once, in the order of the options."""
    from trainer.formats.data.data_sources import groups

    options = _expanded(run).options
    return tuple(dict.fromkeys(source.prefix for group in groups(options, "train") for source in group.sources))


def _length_of(run: str) -> dict[str, int]:
    """Return the length of the run as options of `mix`. The run's data is not read, since it may be the mix."""
    from opsctl.run.config.checks import length_of_run

    samples, sequence_length = length_of_run(_loaded(run))
    return {"train_samples": samples, "seq_length": sequence_length}


def _loaded(run: str | None) -> LoadedRun:
    from opsctl.core.errors import RunFileError
    from opsctl.run.state.run_view import glance

    chosen = glance(run)
    if chosen.loaded is None:
        raise RunFileError(chosen.problem)
    return chosen.loaded


def _expanded(run: str | None) -> ExpandedRun:
    from opsctl.run.config.checks import check_run

    return check_run(_loaded(run))[0]
