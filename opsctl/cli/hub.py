"""`opsctl hub`: a run's logs, curves, carbon and checkpoints on a hub."""

from __future__ import annotations

import sys

import click

from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import all_runs_option, for_runs, json_option, run_argument, run_option
from opsctl.core.output import message, print_json, show, show_lines
from opsctl.core.units import bytes_words
from opsctl.run.config.file_kinds import KINDS
from opsctl.run.config.profile import jobs_table
from opsctl.run.state.run_view import view
from opsctl.transfer.hub import check as hub_check
from opsctl.transfer.hub.client import log_in
from opsctl.transfer.hub.json_output import ComparedHub, SyncedRun
from opsctl.transfer.hub.settings import hub_settings, required_settings
from opsctl.transfer.hub.sync import sync_run


@click.group("hub")
def command() -> None:
    """Send a run's logs, curves and checkpoints to a hub, and compare.

    The run file's [hub] names the repositories. A sync without new files does not contact the hub.
    """


@command.command()
def login() -> None:
    """Log in to the hub with a token.

    At a terminal it prompts for the token, else it reads standard input, and tries the token. huggingface_hub stores it
    in its usual file, readable by you alone.
    """
    token = click.prompt("Token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    show(log_in(str(token).strip()))


@command.command()
@run_argument
@json_option(checked="opsctl.transfer.hub.json_output.CheckedHub")
@click.pass_context
def check(ctx: click.Context, run: str | None, as_json: bool) -> None:
    """Check the token, the repositories and the right to write.

    Also prints where the scheduler's syncs run and what a sync would send. Sends nothing. Exits 1 on a problem.
    """
    seen = view(run)
    found = hub_check.check(seen.paths, seen.table.name, required_settings(seen), jobs_table().internet_partition)
    if as_json:
        print_json("checked", found)
    else:
        show(f"token: {found.user or 'none that counts'}{f' ({found.role})' if found.role else ''}")
        for one in found.repos:
            state = "there" if one.exists else "will be made"
            right = {True: ", may write", False: ", may not write", None: ""}[one.may_write]
            show(f"{one.repo}: {state}{right}: {', '.join(one.kinds)}")
        show(f"the cron's syncs run on: {found.partition or 'the partition of the cron'}")
        show(f"a sync would send {found.files} files, {bytes_words(found.bytes)}")
        for line in found.problems:
            message(line)
    ctx.exit(1 if found.problems else 0)


@command.command(cls=LongCommand, internet=True)
@click.argument("kind", type=click.Choice([*KINDS, "all"]), default="all")
@run_option
@all_runs_option
@click.option("--dry-run", is_flag=True, help="Print what would be sent; change nothing.")
@json_option(synced="list[opsctl.transfer.hub.json_output.SyncedRun]")
@click.pass_context
def sync(ctx: click.Context, kind: str, run: str | None, all_runs: bool, dry_run: bool, as_json: bool) -> None:
    """Send new files of one KIND, or of all kinds.

    KIND is logs, tensorboard, carbon, report or checkpoints. Each run has only one active sync, even if several hosts
    start one. You can kill a sync at any time: files that arrived are not sent again. --all-runs selects your runs with
    a [hub].

    Exits 1 and prints the reason if a file was not sent.
    """
    kinds = KINDS if kind == "all" else (kind,)
    done, _ = for_runs(
        run,
        all_runs,
        lambda seen: hub_settings(seen) is not None,
        lambda seen: [sync_run(seen, kinds, dry_run, message)],
        left=lambda name, error: SyncedRun(run=name, state="left", left=[str(error)]),
    )
    for one in done:
        for note in one.notes:
            message(f"{one.run}: {note}")
        for line in one.left:
            message(f"{one.run}: not sent: {line}")
    if as_json:
        print_json("synced", done)
    else:
        show_lines(one.line for one in done)
    ctx.exit(1 if any(one.left for one in done) else 0)


@command.command()
@run_argument
@click.option("--repair", is_flag=True, help="Send missing and different files again.")
@json_option(hub="opsctl.transfer.hub.json_output.ComparedHub")
@click.pass_context
def status(ctx: click.Context, run: str | None, repair: bool, as_json: bool) -> None:
    """Compare the sent files with the hub's repositories.

    Compares all names, and each content of which the hub stores a hash. Exits 1 if files differ; with --repair, if
    files still differ after the repair.
    """
    found, left = hub_check.compare_run(view(run), repair, message)
    for line in left:
        message(f"{found.printed.run}: not sent: {line}")
    if as_json:
        print_json("hub", found.printed)
    else:
        _show_compared(found.printed)
    ctx.exit(1 if found.wrong or left else 0)


def _show_compared(found: ComparedHub) -> None:
    for one in found.revisions:
        wrong = [
            f"{len(names)} {word}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
            for word, names in (("missing", one.missing), ("differ", one.differing), ("lost", one.lost))
            if names
        ]
        show(f"{one.repo} {one.revision}: {one.files} files, {'; '.join(wrong) or 'all there'}")
    last = f"last sent {found.last_sent}" if found.last_sent else "never sent anything"
    sending = f"; {found.uploader} is sending" if found.uploader else ""
    show(f"{found.run}: {found.waiting} files to be sent, {last}{sending}")
