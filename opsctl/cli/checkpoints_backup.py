"""`opsctl checkpoints backup` and `restore`: checkpoints to another place, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from opsctl.cli.backup_options import endpoint_of, far_store, flow_of, has_backup, kept_going, opened, raise_first
from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import all_runs_option, for_runs, json_option, run_argument
from opsctl.core.errors import OpsctlError
from opsctl.core.output import message, print_json
from opsctl.core.units import bytes_words
from opsctl.run.state.run_view import RunView, glance
from opsctl.transfer.backups.destination import Wish, back_up, plan_backup
from opsctl.transfer.backups.json_output import BackedUpRun, DueBackup, printed
from opsctl.transfer.backups.restore_checkpoint import choose, restore_to_folder, restore_to_run
from opsctl.transfer.backups.schedule import never_whole, policy_of
from opsctl.transfer.object_store.types import StoreError
from opsctl.transfer.object_store.urls import refuse_secret
from trainer.formats.checkpoint.manifest import tag_of

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
    what = "Confirm that the destination is mounted and was emptied, and send everything again."
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
    if all_runs and (run or to or steps or emptied):
        raise click.UsageError("--all-runs, or one run with --to, --step and --emptied: give one of them")
    wish = Wish(steps or None, weights_only, emptied)

    def act(seen: RunView) -> list[BackedUpRun]:
        return _back_up(seen, to, limit, wish, dry_run)

    done, is_well = for_runs(run, all_runs, has_backup, act)
    if as_json:
        print_json("backups", done)
    is_all = not steps or not any(one.left for one in done)
    ctx.exit(0 if is_well and is_all and not any(one.problems for one in done) else 1)


def _back_up(run: RunView, to: str | None, limit: str | None, wish: Wish, dry_run: bool) -> list[BackedUpRun]:

    name, policy, done = run.table.name, policy_of(run, to, limit), []
    for warning in filter(None, (*policy.warnings, never_whole(policy.table, run))):
        message(f"{name}: warning: {warning}")
    failed: list[OpsctlError] = []
    for url in policy.table.to:
        with kept_going(failed), opened(run, policy, url) as place:
            chosen = plan_backup(place, policy.table, wish)
            for due in chosen.due:
                message(f"{tag_of(due.iteration)}: {due.what.words} to {url}: {due.reason}, {due.news}")
            for iteration, why in chosen.left.items():
                message(f"{tag_of(iteration)} is not sent: {why}")
            if not (chosen.due or chosen.there or chosen.left):
                every = f"full_every = {policy.table.full_every:,} or weights_every = {policy.table.weights_every:,}"
                message(f"{name}: nothing is due: no checkpoint here is a multiple of {every}; --step N sends one")
            sent = None if dry_run or not chosen.due else back_up(place, policy.table, wish, lambda line: message(line))
            problems = list(sent.problems) if sent else []
            for problem in problems:
                message(f"{name}: {problem}")
            counted = f"{len(sent.lines) if sent else 0} of {len(chosen.due)} sent"
            message(f"{name}: {url}: {counted}, {len(chosen.there)} there already")
            done.append(
                BackedUpRun(
                    run=name,
                    to=url,
                    due=[
                        DueBackup(iteration=one.iteration, what=one.what.value, reason=one.reason, news=one.news)
                        for one in chosen.due
                    ],
                    sent=[printed(line) for line in sent.lines] if sent else [],
                    there=list(chosen.there),
                    left={str(iteration): why for iteration, why in chosen.left.items()},
                    problems=problems,
                    dry_run=dry_run,
                )
            )
    raise_first(failed)
    return done


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
    Nothing is overwritten, and no job may be training. If the run has no checkpoint, the restored one becomes the
    latest; otherwise use `checkpoints repoint`. To train from a checkpoint without optimizer states, give the trainer
    --no-load-optim or --finetune. --endpoint defaults to the endpoint of the run's [backup], if --from is one of its
    destinations.
    """
    if into is not None and run:
        raise click.UsageError("a run and --into given: give one of them")
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
