"""The command `opsctl checkpoints`: list a run's checkpoints and choose another; other modules have the subcommands."""

from __future__ import annotations

import sys
from typing import Any

import click

from opsctl.cli import checkpoints_backup, checkpoints_care, checkpoints_show
from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import json_option, run_argument

_NEEDED_TO_CONVERT = ("torch", "deepspeed", "numpy", "xxhash", "rich")


@click.command("list")
@run_argument
@json_option(checkpoints="list[opsctl.run.checkpoints.listing.ListedCheckpoint]")
def list_(run: str | None, as_json: bool) -> None:
    """List all checkpoints with their state and backups.

    Shows iteration, samples, save time, size, state, which one is the latest, and the backups: `full [1]`, or `weights
    [2]` without optimizer states, with the destinations below. A checkpoint is complete if its manifest is valid and
    each file has the size in the manifest, unless the last `verify` found damage.
    """
    import shutil

    from opsctl.cli.backup_options import named_by
    from opsctl.core.errors import OpsctlError
    from opsctl.core.output import message, print_json, show_lines
    from opsctl.run.checkpoints.backups import read_backups
    from opsctl.run.checkpoints.inventory import latest_problem
    from opsctl.run.checkpoints.listing import checkpoint_table, listed
    from opsctl.run.state.run_view import glance
    from trainer.formats.errors import CheckpointError

    seen = glance(run)
    checkpoints, ledger = seen.paths.checkpoints, read_backups(seen.paths)
    try:
        found = listed(checkpoints, ledger, named_by(seen) if ledger else None)
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None
    if as_json:
        print_json("checkpoints", found)
    elif found:
        show_lines(checkpoint_table(found, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    else:
        message("no checkpoints yet")
    if problem := latest_problem(checkpoints):
        message(f"opsctl: {problem}")


@click.command()
@run_argument
@click.option(
    "--to",
    type=click.IntRange(min=0),
    metavar="ITERATION",
    help="Iteration of the checkpoint [default: the newest complete one].",
)
@click.option("--reason", default="", metavar="TEXT", help="The reason, for the record.")
@click.option("--dry-run", is_flag=True, help="Print the checkpoint that would become the latest; change nothing.")
@json_option(repointed="opsctl.jobs.control.json_output.RepointedCheckpoints")
def repoint(run: str | None, to: int | None, reason: str, dry_run: bool, as_json: bool) -> None:
    """Change only which checkpoint the next task loads.

    The checkpoint must be complete. It works only while no job of the run is training. No checkpoint is moved. Later
    checkpoints are replaced when the training reaches them again. The user and the reason are recorded in
    checkpoints/rollbacks.jsonl. Prints the checkpoint's name.
    """
    from opsctl.core.output import message, print_json, printable, show_lines
    from opsctl.jobs.control.json_output import RepointedCheckpoints
    from opsctl.run.checkpoints.rollbacks import repoint
    from opsctl.run.state.run_view import glance

    chosen = glance(run)
    name = chosen.table.name
    done = repoint(chosen.paths, name, to, printable(reason)[: checkpoints_care.LONGEST_REASON], dry_run)
    if done.warning:
        message(f"warning: {done.warning}")
    before = "was missing or unreadable" if done.before is None else f"was global_step{done.before}"
    if done.is_same:
        message(f"{name}: {done.folder.name} is the latest already")
    else:
        message(f"{name}: the latest {before}, and {'would become' if dry_run else 'is now'} {done.folder.name}")
    if as_json:
        answer = RepointedCheckpoints(before=done.before, to=done.to, changed=not done.is_same, dry_run=dry_run)
        print_json("repointed", answer)
    else:
        show_lines([done.folder.name])


@click.command(cls=LongCommand, goes_on=False)
@run_argument
@click.option("--folder", metavar="DIR", help="A checkpoint, or a folder of them, that belongs to no run.")
@click.option("--to", type=click.Choice(["universal", "native"]), required=True, help="Format to write.")
@click.option(
    "--step", type=click.IntRange(min=0), metavar="N", help="Iteration of the run's checkpoint [default: the latest]."
)
@click.option("--output", metavar="DIR", required=True, help="The new folder, which must not exist.")
@click.option(
    "--tensor-parallel",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tensor-parallel size of a native checkpoint [default: 1].",
)
@click.option(
    "--pipeline-parallel",
    type=click.IntRange(min=1),
    metavar="N",
    help="Pipeline-parallel size of a native checkpoint [default: 1].",
)
@click.option(
    "--data-parallel",
    type=click.IntRange(min=1),
    metavar="N",
    help="Data-parallel size of a native checkpoint [default: 1].",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of processes [default: one per core, at most 16].",
)
@click.option("--dry-run", is_flag=True, help="Print what would be written and the space it needs; change nothing.")
@json_option(converted="trainer.formats.checkpoint.exchanged.ConvertedCheckpoint")
def convert(run: str | None, folder: str | None, to: str, step: int | None, **options: Any) -> int:
    """Convert to DeepSpeed's universal format, or back from it.

    Our trainer loads any native checkpoint; universal ones are for DeepSpeed's own engines and other programs. A native
    checkpoint is written with its `latest`, for the given layout. The original is kept.
    """
    from opsctl.cli.trainer_program import option_words, run_trainer_program
    from opsctl.run.state.run_view import glance
    from trainer.formats.checkpoint.manifest import tag_of

    if to == "universal" and any(value for name, value in options.items() if name.endswith("_parallel")):
        raise click.UsageError("a universal checkpoint has no layout: leave out --tensor-parallel and the others")
    if folder is None:
        checkpoints = glance(run).paths.checkpoints
        folder = str(checkpoints if step is None else checkpoints / tag_of(step))
    elif run:
        raise click.UsageError("a run and --folder given: the run has its own checkpoints")
    elif step is not None:
        raise click.UsageError("--step needs a run; with --folder give the path of the checkpoint")
    words = [f"--to={to}", *option_words(options), "--", folder]
    return run_trainer_program("trainer.convert.convert_program", words, _NEEDED_TO_CONVERT)


class _InOrder(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of use, not in alphabetical order."""
        return list(self.commands)


@click.group(cls=_InOrder)
def command() -> None:
    """List, check, choose, remove and copy a run's checkpoints."""


for _command in (
    list_,
    checkpoints_show.show,
    checkpoints_show.verify,
    checkpoints_backup.backup,
    checkpoints_backup.restore,
    checkpoints_care.prune,
    checkpoints_care.rollback,
    repoint,
    convert,
):
    command.add_command(_command)
