"""`opsctl checkpoints prune` and `rollback`: what may change of a run's checkpoints. Neither needs Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from opsctl.cli.backup_options import opened
from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import all_runs_option, for_runs, json_option, run_argument
from opsctl.cli.trainer_program import output_of_trainer_program
from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import parsed
from opsctl.core.output import message, print_json, printable
from opsctl.jobs.control.json_output import PrunedRun, RolledBackRun
from opsctl.jobs.control.prune import prune_run
from opsctl.jobs.control.rollback import EventFile, Point
from opsctl.jobs.control.rollback import rollback as roll_back
from opsctl.jobs.control.rollback import undo as bring_back
from opsctl.run.checkpoints.backups import BackedUp
from opsctl.run.checkpoints.retention import Answers
from opsctl.run.state.run_view import RunView, glance
from opsctl.transfer.backups.schedule import policy_of
from opsctl.transfer.backups.verify import prove

#: Characters of a reason for the record, also where another checkpoint is made the latest.
LONGEST_REASON = 1000


@click.command(cls=LongCommand, internet=True)
@run_argument
@all_runs_option
@click.option(
    "--dry-run", is_flag=True, help="Print what would be deleted and why the rest is kept. This is the default."
)
@click.option("--yes", is_flag=True, help="Delete the checkpoints. Without this option the command only prints them.")
@click.option("--before-run", is_flag=True, help="Also delete what another program had saved before the run.")
@json_option(pruned="list[opsctl.jobs.control.json_output.PrunedRun]")
@click.pass_context
def prune(
    ctx: click.Context,
    run: str | None,
    all_runs: bool,
    dry_run: bool,
    yes: bool,
    before_run: bool,
    as_json: bool,
) -> None:
    """Delete checkpoints that [retention] does not keep.

    Without --yes it only prints what it would delete. It never deletes the latest checkpoint, the two newest complete
    ones, pinned ones, incomplete ones, or ones that a check found damaged.

    If [retention] deletes a checkpoint because it has a backup, prune first reads and verifies the backup, unless the
    store proves that it did not change. The training may run meanwhile. Deletions are recorded in
    checkpoints/prunes.jsonl. --all-runs selects your runs with a [retention].
    """
    if yes and dry_run:
        raise click.UsageError("--yes and --dry-run cannot be combined")

    def act(seen: RunView) -> list[PrunedRun]:
        def ask_destinations(lines: Sequence[BackedUp]) -> Answers:
            return prove(lines, lambda to: opened(seen, policy_of(seen), to)) if lines else {}

        try:
            return [prune_run(seen, message, ask_destinations, not yes, before_run)]
        except OpsctlError as error:
            if not all_runs:
                raise
            name = seen.table.name
            message(f"{name}: {error}")
            return [PrunedRun(run=name, dry_run=not yes, kept={}, pruned=[], problems=[str(error)])]

    def has_policy(seen: RunView) -> bool:
        return seen.revision is not None and seen.revision.file.retention is not None

    done, is_well = for_runs(run, all_runs, has_policy, act)
    if not (yes or dry_run) and any(one.pruned for one in done):
        message("nothing was deleted: --yes deletes them")
    if as_json:
        print_json("pruned", done)
    ctx.exit(0 if is_well and not any(one.problems for one in done) else 1)


@click.command()
@run_argument
@click.option(
    "--to", type=click.IntRange(min=0), metavar="ITERATION", help="Iteration of the checkpoint to resume from."
)
@click.option(
    "--undo",
    is_flag=False,
    flag_value="newest",
    metavar="[NUMBER]",
    help="Undo the rollback with this number [default: the newest].",
)
@click.option("--reason", default="", metavar="TEXT", help="The reason, for the record.")
@click.option("--keep-curves", is_flag=True, help="Do not change TensorBoard's files.")
@click.option("--dry-run", is_flag=True, help="Print what would be set aside; change nothing.")
@json_option(rolled_back="opsctl.jobs.control.json_output.RolledBackRun")
def rollback(
    run: str | None,
    to: int | None,
    undo: str | None,
    reason: str,
    keep_curves: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Resume from an earlier checkpoint, and move later ones away.

    Later checkpoints, and the later part of TensorBoard's files, move to set-aside/NUMBER in the output folder. Nothing
    is deleted, and --undo moves them back. It works only while no job of the run is training. The rollback is recorded
    in checkpoints/rollbacks.jsonl. The training log does not change.
    """
    if (to is None) == (undo is None):
        raise click.UsageError("give --to ITERATION, or --undo")
    if undo is not None and undo != "newest" and not undo.isdecimal():
        raise click.UsageError(f"--undo {undo}: give the number of a rollback, or none for the newest")
    seen = glance(run)
    name, read = seen.table.name, _no_curves if keep_curves else _curves
    if to is not None:
        done = roll_back(seen.paths, name, to, printable(reason)[:LONGEST_REASON], read, dry_run)
    else:
        number = None if undo in (None, "newest") else int(undo)
        done = bring_back(seen.paths, name, number, read, dry_run)
    for line in (*done.finished, *([f"warning: {done.warning}"] if done.warning else [])):
        message(f"{name}: {line}")
    message(f"{name}: {done.summary(undo is not None, dry_run)}")
    if as_json:
        answer = RolledBackRun(
            number=done.number,
            before=done.before,
            to=done.to,
            checkpoints=list(done.checkpoints),
            events=list(done.events),
            folder=str(done.folder) if done.folder else None,
            dry_run=dry_run,
        )
        print_json("rolled_back", answer)


def _no_curves(_folder: Path, _point: Point, _output: Path | None) -> Sequence[EventFile]:
    return ()


def _curves(folder: Path, point: Point, output: Path | None) -> Sequence[EventFile]:
    """Return the event files in `folder`, read by a program of the trainer. Raises OpsctlError."""
    if not any(folder.rglob("*tfevents*")):
        return ()
    counted = {"iteration": point.iteration, "samples": point.samples, "tokens": point.tokens}
    arguments = [f"--folder={folder}", *(f"--{unit}={value}" for unit, value in counted.items())]
    arguments += [f"--output={output}"] if output else []
    told = output_of_trainer_program("trainer.loop.rewind", arguments, needed=("tensorboard",))
    return [parsed(line, EventFile) for line in told.splitlines()]
