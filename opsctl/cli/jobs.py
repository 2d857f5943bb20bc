"""`opsctl jobs`: the long commands that run as Slurm jobs: how they stand, what they print, ending one."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import click

from opsctl.cli.selection import json_option
from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError
from opsctl.core.output import message, print_json, show, show_lines
from opsctl.core.timestamps import now
from opsctl.jobs.background.execute import execute
from opsctl.jobs.background.listing import command_lines, printed_command, read_output
from opsctl.jobs.background.records import command_records
from opsctl.jobs.background.submission import check, settle
from opsctl.jobs.tracked_job import own_job_id
from opsctl.slurm.backends import client_for

#: How long one that has ended is listed without being asked for.
_SHOWN = timedelta(days=7)


class _ListByDefault(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`opsctl jobs [OPTIONS]` is `opsctl jobs list [OPTIONS]`."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListByDefault)
def command() -> None:
    """List opsctl commands that you started with --job.

    For training jobs, type opsctl queue. The default command is `list`.
    """


@command.command("list")
@click.option("--all", "show_all", is_flag=True, help="Include commands that ended more than a week ago.")
@json_option(errands="list[opsctl.jobs.background.listing.PrintedCommand]")
@click.pass_context
def list_(ctx: click.Context, show_all: bool, as_json: bool) -> None:
    """List these commands with their state, jobs and exit code.

    Also shows the last line of output. Exits 1 if Slurm does not answer; open commands are then shown as last known.
    """
    place = command_records()
    chosen = [one for one in place.all() if show_all or one.ended_at is None or now() - one.ended_at < _SHOWN]
    seen, problem = check(place, chosen, client_for)
    printed = [printed_command(place, one) for one in seen]
    if as_json:
        print_json("errands", printed)
    elif printed:
        show_lines(command_lines(printed))
    else:
        message("no jobs of long commands" + ("" if show_all else " of this week: --all shows earlier ones"))
    if problem:
        message(f"opsctl: {problem}")
        ctx.exit(1)


@command.command()
@click.argument("which", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Print new output until the command ends.")
@click.pass_context
def logs(ctx: click.Context, which: str, follow: bool) -> None:
    """Print the output of a command. ID is its name, or the id of one of its Slurm jobs.

    With -f, exits with the exit code of the command.
    """
    place = command_records()
    name = place.find(which).name
    looked_at, rest, end = 0.0, "", 0
    while True:
        one = place.read(name) or place.find(name)
        # What is on record is free to look at; Slurm is asked now and then, for what could not say its own end.
        if one.is_open and follow and time.monotonic() - looked_at > _ASK_S:
            looked_at = time.monotonic()
            one = check(place, [one], client_for)[0][0].command
        text, end = read_output(place, name, end)
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            show(line)
        if not follow or not one.is_open:
            break
        time.sleep(0.5)
    if rest:
        show(rest)
    if not one.is_open:
        message(f"{name}: {one.state}" + (f" ({one.detail})" if one.detail else ""))
    if follow:
        ctx.exit(one.exit_code if one.exit_code is not None else 0 if one.state == "done" else 1)


@command.command()
@click.argument("which", metavar="ID")
@click.option("--dry-run", is_flag=True, help="Print what would be cancelled; change nothing.")
def cancel(which: str, dry_run: bool) -> None:
    """Cancel a command and all of its jobs. Its results so far are kept."""
    place = command_records()
    name = place.find(which).name
    with place.locked(f"cancel {name}"):
        one = place.find(name)
        (seen,) = settle(place, client_for(one.cluster), [one])
        one = seen.command
        if not one.is_open:
            raise OpsctlError(f"{name} is {one.state} already")
        if not dry_run:
            client_for(one.cluster).cancel([seen.job.job_id] if seen.job is not None else [])
            place.write(one.ended("cancelled", f"by {account_and_host()}"))
    show(str(one.last.job_id))


@command.command()
@click.argument("which", metavar="[ID]...", nargs=-1)
@click.option("--ended", is_flag=True, help="Remove all commands that have ended.")
@click.option("--anyway", is_flag=True, help="Also remove an open one if its cluster no longer answers.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed; change nothing.")
def forget(which: tuple[str, ...], ended: bool, anyway: bool, dry_run: bool) -> None:
    """Remove ended commands and their output from the list.

    Cancel an open command first, because its job may still work. --anyway also removes an open command whose
    cluster no longer exists. If its job starts later, that job does nothing.
    """
    if bool(which) == ended:
        raise click.UsageError("give the ids of the commands to forget, or --ended")
    place = command_records()
    wanted = {one.name: one for one in ([place.find(each) for each in which] if which else place.all())}
    seen = [one for one in check(place, list(wanted.values()), client_for)[0] if which or not one.command.is_open]
    for one in seen:
        name = one.command.name
        if one.command.is_open and one.unknown and not anyway:
            raise OpsctlError(f"{name} is open, and Slurm does not report its state: use --anyway ({one.unknown})")
        if one.command.is_open and not one.unknown:
            raise OpsctlError(f"{name} is {one.state}: opsctl jobs cancel {name} ends it first")
    with place.locked("forget jobs"):
        for one in seen:
            if not dry_run:
                place.forget(one.command.name)
            if not dry_run and place.record(one.command.name).parent.exists():
                raise OpsctlError(
                    f"{place.record(one.command.name).parent} cannot be removed: look who may write there"
                )
            show(one.command.name)


@command.command("exec", hidden=True)
@click.option("--errand", "name", required=True, help="Its name.")
@click.option("--number", type=int, required=True, help="Of its jobs, from 1 on.")
def exec_(name: str, number: int) -> int:
    """One job of a background command; its batch script calls it."""
    place, job_id = command_records(), own_job_id()
    found = place.read(name)
    if found is None or not job_id:
        raise OpsctlError(f"{name}: this is called by the job of a command that is on record")
    client = client_for(found.cluster, patient=True)
    return execute(place, client, name, number, job_id, socket.gethostname(), dict(os.environ))


#: Between two questions to Slurm of one who follows, seconds.
_ASK_S = 30.0
