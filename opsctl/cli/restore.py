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
    from opsctl.run.config.locate import RUN_FILE_NAME, known_runs, remember_run
    from opsctl.transfer.backups.json_output import RestoredRun
    from opsctl.transfer.backups.restore_run import Asked, restore_run

    if data:
        if to or no_checkpoint or stands_as or weights_only or step is not None:
            raise click.UsageError("--data brings data sets alone: give --into, --run and --limit with it")
        _bring_data(from_, endpoint, into, of_run, limit, as_json)
        return
    if to is None or into or of_run:
        missing = "Missing option '--to'" if to is None else "--into and --run are of --data"
        raise click.UsageError(missing)
    if no_checkpoint and (step is not None or weights_only):
        raise click.UsageError("--no-checkpoint, or which one: give one of them")
    folder = Path(os.path.abspath(to))  # noqa: PTH100 - links stay as written
    with far_store(from_, endpoint) as store:
        asked = Asked(step, weights_only, not no_checkpoint, stands_as)
        done = restore_run(store, folder, asked, flow_of(limit), message)
    note = done.note
    for warning in done.warnings:
        message(f"warning: {warning}")
    if (done.folder / RUN_FILE_NAME).is_file():
        known = known_runs().get(note.name)
        if note.is_copy and known and Path(known).is_file():
            message(f"--run {note.name} stays {known}, also for the cron: give the copy a [run] name of its own")
        else:
            remember_run(note.name, done.folder / RUN_FILE_NAME)
    checkpoint = "no checkpoint" if note.checkpoint is None else f"global_step{note.checkpoint}, the latest"
    state = "complete already, nothing was fetched; " if done.was_there else ""
    message(f"{done.folder}: {state}{note.name}, {note.standing}; {note.files} files of records and logs, {checkpoint}")
    if as_json:
        answer = RestoredRun(
            folder=str(done.folder),
            run=note.name,
            files=note.files,
            bytes=note.bytes,
            checkpoint=note.checkpoint,
            standing=note.standing,
            warnings=list(done.warnings),
            was_there=done.was_there,
        )
        print_json("restored", answer)


def _bring_data(
    from_: str, endpoint: str | None, into: str | None, of_run: str | None, limit: str | None, as_json: bool
) -> None:
    from opsctl.cli.backup_options import far_store, flow_of
    from opsctl.core.output import message, print_json
    from opsctl.transfer.backups.data_copies import changes_to_make, choose, restore_data
    from opsctl.transfer.backups.json_output import RestoredData

    with far_store(from_, endpoint) as store:
        chosen = choose(store, of_run)
        done = restore_data(store, chosen, Path(into) if into else None, flow_of(limit), message)
    changes = changes_to_make(done)
    for line in changes:
        message(f"change: {line}")
    if as_json:
        print_json("restored_data", RestoredData(run=chosen.run, run_id=chosen.run_id, sets=done, changes=changes))
