"""`opsctl restore`: a whole run, or its data sets, from where they are backed up."""

from __future__ import annotations

import os
from pathlib import Path

import click

from opsctl.cli.checkpoints_backup import endpoint_option, from_option, limit_option
from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import json_option


@click.command(cls=LongCommand, internet=True)
@from_option
@click.option("--to", "to", metavar="FOLDER", help="New folder of the run, which must not exist.")
@click.option(
    "--step",
    type=click.IntRange(min=0),
    metavar="ITERATION",
    help="Iteration of the checkpoint [default: the newest complete one].",
)
@click.option("--no-checkpoint", is_flag=True, help="Restore logs and records only.")
@click.option("--weights-only", is_flag=True, help="Restore the checkpoint without optimizer states.")
@click.option(
    "--as",
    "stands_as",
    type=click.Choice(["same", "copy"]),
    help="same: the run has moved here. copy: this is another run [default: same if the old folder is gone].",
)
@click.option("--data", is_flag=True, help="Restore the run's data sets instead, to their old paths.")
@click.option("--into", metavar="FOLDER", help="With --data: restore below this folder, each data set into its own.")
@click.option("--run", "of_run", metavar="NAME", help="With --data: name of the run, if the backup has several.")
@endpoint_option
@limit_option
@json_option(
    restored="opsctl.transfer.backups.json_output.RestoredRun",
    restored_data=("opsctl.transfer.backups.json_output.RestoredData", "with `--data`"),
)
def command(
    from_: str,
    to: str | None,
    step: int | None,
    no_checkpoint: bool,
    weights_only: bool,
    stands_as: str | None,
    data: bool,
    into: str | None,
    of_run: str | None,
    endpoint: str | None,
    limit: str | None,
    as_json: bool,
) -> None:
    """Restore a whole run from its backup on any machine; with --data only its data sets.

    Restores the run file, records, logs, curves and one checkpoint, which becomes the latest. The files are verified
    before FOLDER gets its name. After an interruption, repeat the command; after a complete restore it reports that.

    --data skips files that are already there and overwrites none. The command prints what to change in the run file if
    the data sets have a new location.
    """
    from opsctl.cli.backup_options import far_store, flow_of
    from opsctl.core.output import message, print_json
    from opsctl.transfer.backups.data_copies import restore_data
    from opsctl.transfer.backups.restore_run import Asked, restore_run

    if data and (to or no_checkpoint or stands_as or weights_only or step is not None):
        raise click.UsageError("--data restores data sets only: give --into, --run and --limit with it")
    if not data and (to is None or into or of_run):
        raise click.UsageError("Missing option '--to'" if to is None else "--into and --run need --data")
    if no_checkpoint and (step is not None or weights_only):
        raise click.UsageError("--no-checkpoint cannot be combined with --step or --weights-only")
    with far_store(from_, endpoint) as store:
        if to is None:
            done = restore_data(store, of_run, Path(into) if into else None, flow_of(limit), message)
            if as_json:
                print_json("restored_data", done)
            return
        folder = Path(os.path.abspath(to))  # noqa: PTH100 - links stay as written
        asked = Asked(step, weights_only, not no_checkpoint, stands_as)
        restored = restore_run(store, folder, asked, flow_of(limit), message)
    if as_json:
        print_json("restored", restored)
