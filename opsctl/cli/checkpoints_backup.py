"""`opsctl checkpoints backup` and `restore`: checkpoints to another place, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from opsctl.cli.backup_options import far_store, flow_of, opened
from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import all_runs_option, for_runs, json_option, run_argument
from opsctl.core.output import message, print_json
from opsctl.core.units import bytes_words
from opsctl.run.state.run_view import glance
from opsctl.transfer.backups.destination import Wish
from opsctl.transfer.backups.restore_checkpoint import choose, restore_to_folder, restore_to_run
from opsctl.transfer.backups.run_backup import back_up_checkpoints
from opsctl.transfer.backups.schedule import endpoint_of, has_backup, policy_of
from opsctl.transfer.object_store.types import StoreError
from opsctl.transfer.object_store.urls import refuse_secret

Function = TypeVar("Function", bound=Callable[..., Any])


def _without_secret(_ctx: click.Context, option: click.Parameter, url: str | None) -> str | None:
    """Before the words are written down for a job."""
    try:
        if url is not None:
            refuse_secret(url)
    except StoreError as error:
        raise click.BadParameter(str(error), param=option) from None
    return url


def to_option(function: Function) -> Function:
    """`--to`."""
    what = "Destination: a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX [default: [backup] to]."
    return click.option("--to", metavar="URL", callback=_without_secret, help=what)(function)


def from_option(function: Function) -> Function:
    """`--from`."""
    what = "Location of the backup, as given to --to."
    return click.option("--from", "from_", metavar="URL", required=True, callback=_without_secret, help=what)(function)


def endpoint_option(function: Function) -> Function:
    """`--endpoint`."""
    what = "URL of an S3-compatible server [default: AWS_ENDPOINT_URL_S3, then AWS_ENDPOINT_URL]."
    return click.option("--endpoint", metavar="URL", callback=_without_secret, help=what)(function)


def limit_option(function: Function) -> Function:
    """`--limit`."""
    what = "Bytes per second for the whole transfer, such as 200MB [default: [backup] limit]."
    return click.option("--limit", metavar="RATE", help=what)(function)


def emptied_option(function: Function) -> Function:
    """Add the option `--emptied`."""
    what = "Send everything again to a mounted destination that you have emptied."
    return click.option("--emptied", is_flag=True, help=what)(function)


@click.command(cls=LongCommand, internet=True)
@run_argument
@all_runs_option
@to_option
@emptied_option
@click.option(
    "--step",
    "steps",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="ITERATION",
    help="Iteration of a checkpoint to copy, in place of the schedule (repeatable).",
)
@click.option("--weights-only", is_flag=True, help="Copy without optimizer states.")
@click.option("--dry-run", is_flag=True, help="Print what would be sent and why; change nothing.")
@limit_option
@json_option(backups="list[opsctl.transfer.backups.json_output.BackedUpRun]")
@click.pass_context
def backup(
    ctx: click.Context,
    run: str | None,
    all_runs: bool,
    to: str | None,
    emptied: bool,
    steps: tuple[int, ...],
    weights_only: bool,
    dry_run: bool,
    limit: str | None,
    as_json: bool,
) -> None:
    """Copy checkpoints to another place, by the schedule of [backup].

    [backup] full_every selects complete copies, weights_every copies without optimizer states; pinned checkpoints are
    copied completely. Each sent file is verified by its checksum, and the manifest is sent last: a copy without a
    manifest does not count. Files that arrived are not sent again, so repeat the command after an interruption.
    --all-runs selects your runs with a [backup].
    """
    if all_runs and (to or steps or emptied):
        raise click.UsageError("--all-runs cannot be combined with --to, --step or --emptied")
    wish = Wish(steps or None, weights_only, emptied)
    done, is_well = for_runs(
        run,
        all_runs,
        has_backup,
        lambda seen: back_up_checkpoints(seen, policy_of(seen, to, limit), wish, dry_run, opened, message),
    )
    if as_json:
        print_json("backups", done)
    is_all = not steps or not any(one.left for one in done)
    ctx.exit(0 if is_well and is_all and not any(one.problems for one in done) else 1)


@click.command(cls=LongCommand, internet=True)
@run_argument
@from_option
@click.option(
    "--step", type=click.IntRange(min=0), required=True, metavar="ITERATION", help="Iteration of the checkpoint."
)
@click.option("--weights-only", is_flag=True, help="Restore without optimizer states.")
@click.option("--into", metavar="FOLDER", help="Restore into this folder; needs no run.")
@endpoint_option
@limit_option
@json_option(restored="opsctl.transfer.backups.json_output.RestoredCheckpoint")
def restore(
    run: str | None,
    from_: str,
    step: int,
    weights_only: bool,
    into: str | None,
    endpoint: str | None,
    limit: str | None,
    as_json: bool,
) -> None:
    """Restore one checkpoint from a backup.

    The files are written under a temporary name, verified, and renamed. After an interruption, repeat the command.
    Nothing is overwritten. It works only while no job of the run is training. If the run has no checkpoint, the
    restored one becomes the latest; otherwise use `checkpoints repoint`. To train from a checkpoint without optimizer
    states, give the trainer --no-load-optim or --finetune. --endpoint defaults to the endpoint of the run's [backup],
    if --from is one of its destinations.
    """
    if into is not None and run:
        raise click.UsageError("a run and --into cannot be combined")
    seen = glance(run) if into is None else None
    with far_store(from_, endpoint or (endpoint_of(seen, from_) if seen else None)) as store:
        chosen = choose(store, step, weights_only)
        flow = flow_of(limit, chosen.bytes)
        if seen is not None:
            done = restore_to_run(store, chosen, seen.paths, seen.table.name, flow)
        else:
            done = restore_to_folder(store, chosen, Path(into or "").absolute(), flow)
    kind = ", without optimizer states" if done.without_optimizer else ""
    latest = ", the latest" if done.latest else ""
    state = "complete already, nothing was fetched, " if done.was_there else ""
    message(f"{done.folder}: {state}{done.files} files, {bytes_words(done.bytes)}, each as it was sent{kind}{latest}")
    if as_json:
        print_json("restored", done)
