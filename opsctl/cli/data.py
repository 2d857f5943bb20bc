"""`opsctl data`: text to the trainer's data files, and what a training makes of these at its start."""

from __future__ import annotations

import click

from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import json_option, pick, run_argument


@click.group()
def command() -> None:
    """Turn text into the trainer's data files; build ahead what a training builds of them at its start."""


@command.command("prepare", cls=LongCommand, goes_on=False)
@click.argument("input_path", metavar="INPUT")
@click.option("--output-prefix", metavar="P", required=True, help="Files are named P_KEY_document.{bin,idx,json}.")
@click.option("--tokenizer", metavar="DIR", help="tokenizer.json, a folder with it, or with vocab.json and merges.txt.")
@click.option(
    "--vocab-size",
    type=click.IntRange(min=257),
    metavar="N",
    help="Train a byte-level BPE of N tokens on INPUT [default: 32768].",
)
@click.option("--json-key", metavar="KEY", default="text", show_default=True, help="Where a JSON line keeps its text.")
@click.option(
    "--append-eod/--no-append-eod", default=True, show_default=True, help="End each document with its own token."
)
@click.option("--include", metavar="GLOB", multiple=True, help="Of a folder, only files like this (repeatable).")
@click.option(
    "--exclude", metavar="GLOB", multiple=True, help="Of a folder, no files or folders like this (repeatable)."
)
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Encoding threads [default: one per core, at most 16]."
)
@click.option("--overwrite", is_flag=True, help="Replace files that are there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with schema_version.")
def prepare(
    input_path: str,
    output_prefix: str,
    tokenizer: str | None,
    vocab_size: int | None,
    json_key: str,
    append_eod: bool,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    workers: int | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Write INPUT as Megatron's .bin/.idx.

    INPUT is a file of JSON-lines (also gzipped), or a folder with one document per file, read in the order of the
    files' names. Files that are not UTF-8 text are left out and counted. Without --tokenizer a byte-level BPE is
    trained on the text and written beside the data as tokenizer.json. A run file's data_path is then P_KEY_document.
    """
    from opsctl.cli.trainer_program import run_trainer_program

    if tokenizer and vocab_size:
        raise click.UsageError("--tokenizer brings its own vocabulary; leave out --vocab-size")
    arguments = [
        f"--output-prefix={output_prefix}",
        f"--json-key={json_key}",
        "--append-eod" if append_eod else "--no-append-eod",
    ]
    for name, value in (("--tokenizer", tokenizer), ("--vocab-size", vocab_size), ("--workers", workers)):
        arguments += [f"{name}={value}"] if value else []
    arguments += [f"--include={pattern}" for pattern in include] + [f"--exclude={pattern}" for pattern in exclude]
    arguments += ["--overwrite"] * overwrite + ["--json"] * as_json + ["--", input_path]
    return run_trainer_program("trainer.data.prepare", arguments, needed=("numpy", "tokenizers", "tiktoken", "rich"))


@command.command("index", cls=LongCommand)
@run_argument
@click.option("--dry-run", is_flag=True, help="Say what is there and what would be built; build nothing.")
@json_option
def index(run_argument: str | None, run: str | None, dry_run: bool, as_json: bool) -> int:
    """Build the orders of samples that the training would build at its first start, while its nodes wait.

    For the run file as it is now and from where the training would go on: its training, validation and test data, at
    their lengths. They lie where the training looks for them, which then builds none; what is there is left alone.
    """
    from opsctl.cli.trainer_program import run_trainer_program
    from opsctl.errors import RunFileError
    from opsctl.records.errand_progress import tell_progress
    from opsctl.records.run_view import glance
    from opsctl.runs.checks import check_run

    chosen = glance(pick(run_argument, run))
    if chosen.loaded is None:
        raise RunFileError(chosen.problem)
    expanded, _ = check_run(chosen.loaded)
    arguments = [f"--world-size={expanded.layout.world_size}", *["--dry-run"] * dry_run, *["--json"] * as_json]
    return run_trainer_program(
        "trainer.data.index", [*arguments, "--", *expanded.arguments], ("numpy",), steps=tell_progress
    )
