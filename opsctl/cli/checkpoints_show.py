"""`opsctl checkpoints show` and `verify`: what is in a checkpoint, and whether it is what was written."""

from __future__ import annotations

from pathlib import Path

import click

from opsctl.cli.selection import json_option, run_argument
from opsctl.cli.trainer_program import output_of_trainer_program
from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import parsed
from opsctl.core.output import message, print_json, show_lines
from opsctl.core.units import bytes_words
from opsctl.run.checkpoints.contents import VerifiedCheckpoint, lines_of, record_verification, shown
from opsctl.run.state.run_view import glance
from trainer.formats.checkpoint.manifest import checkpoint_folders, latest_folder, tag_of
from trainer.formats.errors import CheckpointError

_step = click.option(
    "--step", type=click.IntRange(min=0), metavar="ITERATION", help="Iteration of the checkpoint [default: the latest]."
)


@click.command()
@run_argument
@_step
@json_option(checkpoint="opsctl.run.checkpoints.contents.ShownCheckpoint")
def show(run: str | None, step: int | None, as_json: bool) -> None:
    """Print the contents and history of a checkpoint.

    Shows model, layout, samples, tokens, loss, learning rate, who saved it, and every start with its changes. All of it
    is in manifest.json; no weight is read.
    """
    (folder,) = _folders(run, step, False)
    try:
        found = shown(folder)
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None
    if as_json:
        print_json("checkpoint", found)
    else:
        show_lines(lines_of(found))


@click.command()
@run_argument
@_step
@click.option("--all", "all_of_them", is_flag=True, help="Verify every checkpoint.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Number of processes [default: one per core].")
@json_option(verified="list[opsctl.run.checkpoints.contents.VerifiedCheckpoint]")
@click.pass_context
def verify(
    ctx: click.Context,
    run: str | None,
    step: int | None,
    all_of_them: bool,
    workers: int | None,
    as_json: bool,
) -> None:
    """Compare every byte of a checkpoint with its manifest.

    Reads all files and compares sizes and checksums. Prints missing, short and changed files, and exits 1 if there are
    any. The result is recorded in the checkpoint's verified.json. A damaged checkpoint counts as incomplete, for every
    command and for the trainer, until it is verified without a problem or saved again.
    """
    if step is not None and all_of_them:
        raise click.UsageError("--step and --all cannot be combined")
    output = glance(run).paths.output
    folders = [str(folder) for folder in _folders(run, step, all_of_them)]
    arguments = [*([f"--workers={workers}"] if workers else []), "--", *folders]
    told = output_of_trainer_program("trainer.convert.verification", arguments, needed=("xxhash", "rich"))
    found = [parsed(line, VerifiedCheckpoint) for line in told.splitlines()]
    for one in found:
        for problem in one.problems:
            message(f"{Path(one.folder).name}: {problem}")
        verdict = "DAMAGED" if one.problems else "complete, no byte has changed"
        message(f"{Path(one.folder).name}: {one.files} files, {bytes_words(one.bytes)}: {verdict}")
        try:
            record_verification(output, one)
        except OpsctlError as error:
            message(f"{Path(one.folder).name}: {error}")
    if as_json:
        print_json("verified", found)
    ctx.exit(1 if any(one.problems for one in found) else 0)


def _folders(chosen: str | None, step: int | None, all_of_them: bool) -> list[Path]:
    """Return the chosen folders, oldest first. Raises OpsctlError if there are none."""
    root = glance(chosen).paths.checkpoints
    try:
        there = checkpoint_folders(root)[::-1]
        latest = None if step is not None or all_of_them else latest_folder(root)
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None
    if not there:
        raise OpsctlError(f"{root}: there are no checkpoints")
    if all_of_them:
        return there
    if step is not None and root / tag_of(step) not in there:
        raise OpsctlError(f"{root} has no {tag_of(step)}. To see all: opsctl checkpoints list")
    return [latest or root / tag_of(step or 0)]
