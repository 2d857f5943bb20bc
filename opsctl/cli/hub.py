"""`opsctl hub`: a run's logs, curves, carbon and checkpoints on a hub."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import all_runs_option, each_run, json_option, run_argument, run_option
from opsctl.core.errors import OpsctlError, RunFileError, file_problem
from opsctl.core.output import message, print_json, show
from opsctl.core.units import bytes_words
from opsctl.run.config.file_kinds import KINDS
from opsctl.run.config.profile import jobs_table
from opsctl.run.state.run_view import RunView, view
from opsctl.transfer.hub import check as look
from opsctl.transfer.hub.client import log_in
from opsctl.transfer.hub.hub_errors import RetryPolicy
from opsctl.transfer.hub.json_output import ComparedHub, PrintedHubCommit, SyncedRun
from opsctl.transfer.hub.place import Outcome
from opsctl.transfer.hub.settings import HubSettings, hub_settings
from opsctl.transfer.hub.sync import plan_sync
from opsctl.transfer.hub.sync import sync as send_new


@click.group("hub")
def command() -> None:
    """Send a run's logs, curves, carbon and checkpoints to a hub, and compare them.

    The run file's [hub] names the repositories. A sync without new files does not contact the hub.
    """


@command.command()
def login() -> None:
    """Log in to the hub with a token, which is asked for.

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
    found = look.check(seen.paths, seen.table.name, settings_of(seen), jobs_table().internet_partition)
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

    KIND is logs, tensorboard, carbon, report or checkpoints. Only one sync per run works at a time, on all hosts. It
    may be killed at any time: files that arrived are not sent again. --all-runs selects your runs with a [hub].

    Exits 1 and prints the reason if a file was not sent.
    """
    kinds = KINDS if kind == "all" else (kind,)
    done = _sync_all(kinds, dry_run) if all_runs else [_sync_one(run, kinds, dry_run)]
    for one in done:
        for note in one.notes:
            message(f"{one.run}: {note}")
        for line in one.left:
            message(f"{one.run}: not sent: {line}")
    if as_json:
        print_json("synced", done)
    else:
        show_synced(done)
    ctx.exit(1 if any(one.left for one in done) else 0)


@command.command()
@run_argument
@click.option("--repair", is_flag=True, help="Send missing and different files again.")
@json_option(hub="opsctl.transfer.hub.json_output.ComparedHub")
@click.pass_context
def status(ctx: click.Context, run: str | None, repair: bool, as_json: bool) -> None:
    """Compare the sent files with the hub's repositories.

    Compares every name, and every content that the hub stores. Exits 1 if they differ, with --repair if they still
    differ afterwards.
    """
    seen = view(run)
    settings = settings_of(seen)
    found = look.compare(seen.paths, seen.table.name, settings)
    left: list[str] = []
    if repair and found.wrong:
        count = look.forget_what_is_wrong(seen.paths, found)
        message(f"{seen.table.name}: {count} files and checkpoints are sent again")
        left = _outcome(seen, settings, KINDS).left
        for line in left:
            message(f"{seen.table.name}: not sent: {line}")
        found = look.compare(seen.paths, seen.table.name, settings)
    if as_json:
        print_json("hub", found.printed)
    else:
        _show_compared(found.printed)
    ctx.exit(1 if found.wrong or left else 0)


def settings_of(seen: RunView) -> HubSettings:
    """Return the run's [hub]. Raises RunFileError if it has none."""
    settings = hub_settings(seen)
    if settings is None:
        where = seen.loaded.path if seen.loaded else seen.problem
        raise RunFileError(f'{where}: no [hub] in it: write [hub] with repo = "OWNER/NAME"')
    return settings


def _outcome(seen: RunView, settings: HubSettings, kinds: Sequence[str]) -> Outcome:

    name = seen.table.name
    retry = RetryPolicy(settings.give_up_after_s, say=lambda line: message(f"{name}: {line}"))
    return send_new(seen.paths, name, settings, kinds, retry)


def _sync_one(chosen: str | None, kinds: Sequence[str], dry_run: bool) -> SyncedRun:

    seen = view(chosen)
    return synced(seen, settings_of(seen), kinds, dry_run)


def _sync_all(kinds: Sequence[str], dry_run: bool) -> list[SyncedRun]:
    """Every run of this account's with a [hub]. One that fails stops no other."""
    done: list[SyncedRun] = []

    def left(name: str, error: Exception) -> None:
        done.append(SyncedRun(run=name, state="left", left=[str(error)]))

    for name, seen in each_run(lambda run: hub_settings(run) is not None, left):
        try:
            settings = hub_settings(seen)
            assert settings is not None, "it was looked at"
            done.append(synced(seen, settings, kinds, dry_run))
        except (OpsctlError, OSError) as error:
            message(f"{name}: left alone: {error}")
            left(name, error)
    return done


def synced(seen: RunView, settings: HubSettings, kinds: Sequence[str], dry_run: bool) -> SyncedRun:
    """Send the new files of `kinds` and return the result."""
    name = seen.table.name
    try:
        if dry_run:
            plan = plan_sync(seen.paths, settings, kinds)
            state = "would send" if plan.files else "nothing new"
            return SyncedRun(
                run=name, state=state, files=plan.files, bytes=plan.bytes, left=plan.unseen, notes=plan.notes
            )
        outcome = _outcome(seen, settings, kinds)
    except OSError as error:
        return SyncedRun(run=name, state="left", left=[file_problem(error, seen.paths.output)])
    state = "left" if outcome.left else "sent" if outcome.commits else "nothing new"
    commits = [PrintedHubCommit(repo=repo, branch=branch, commit=commit) for repo, branch, commit in outcome.commits]
    return SyncedRun(
        run=name,
        state=state,
        files=outcome.files,
        bytes=outcome.bytes,
        commits=commits,
        left=outcome.left,
        notes=outcome.notes,
    )


def show_synced(done: Sequence[SyncedRun]) -> None:
    """Print a line for each run."""
    for one in done:
        what = f": {one.files} files, {bytes_words(one.bytes)}" if one.files else ""
        state = f"{len(one.left)} not sent{'; sent' if what else ''}" if one.left else one.state
        show(f"{one.run}: {state}{what}")


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
