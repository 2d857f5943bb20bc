"""The command `opsctl alerts`: open alerts, who acknowledged them, and waiting messages per channel. Needs no Slurm."""

from __future__ import annotations

import os

import click

from opsctl.cli.selection import json_option, moment_ahead, run_option
from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.output import message, print_json, show, show_lines
from opsctl.core.timestamps import now
from opsctl.monitoring.alerts.channels import alert_settings, chosen_channels
from opsctl.monitoring.alerts.delivery import send_now
from opsctl.monitoring.alerts.handle import acknowledge, end_silence, silence_until
from opsctl.monitoring.alerts.listing import printed_alerts, printed_sending, screen, sending_line, trial_message
from opsctl.run.state import alert_log, alerts
from opsctl.run.state.run_view import RunView, glance

why_option = click.option("--why", default="", metavar="TEXT", help="The reason, shown to the group.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")


@click.group()
def command() -> None:
    """List, acknowledge and silence alerts, and test the channels.

    `opsctl watch all --alert`, which opsctl cron runs, records findings and sends messages; see docs/alerts.md.
    """


@command.command("list")
@run_option
@click.option("--all", "with_messages", is_flag=True, help="List every message and its receivers.")
@json_option(alerts="opsctl.monitoring.alerts.listing.PrintedAlerts")
def list_(run: str | None, with_messages: bool, as_json: bool) -> None:
    """List open alerts, and the messages that wait on each channel."""
    paths = _run(run).paths
    found = printed_alerts(alerts.remembered(paths), alert_log.events(paths), now(), with_messages)
    if as_json:
        print_json("alerts", found)
    else:
        show_lines(screen(found, now()))


@command.command()
@click.argument("channel", required=False)
@run_option
@json_option(sendings="list[opsctl.monitoring.alerts.listing.PrintedSending]")
@dry_run_option
@click.pass_context
def test(ctx: click.Context, channel: str | None, run: str | None, as_json: bool, dry_run: bool) -> None:
    """Send a test message to the channels and print the result.

    With CHANNEL only to channels with that text in their names.
    """
    seen = _run(run)
    wanted = chosen_channels(alert_settings(seen), channel)
    if dry_run:
        for one in wanted:
            message(f"would send a test to {one.name}")
        return
    sent = send_now(seen.paths, seen.table.name, wanted, trial_message(account_name(), now()), os.environ)
    results = [printed_sending(one) for one in sent]
    if as_json:
        print_json("sendings", results)
    else:
        for result in results:
            show(sending_line(result))
    ctx.exit(0 if all(result.result == "sent" for result in results) else 1)


@command.command()
@click.argument("keys", nargs=-1, metavar="KEY...")
@click.option("--all", "is_all", is_flag=True, help="Acknowledge all open alerts.")
@run_option
@why_option
@json_option(alerts="opsctl.monitoring.alerts.listing.PrintedAlerts")
@dry_run_option
def ack(keys: tuple[str, ...], is_all: bool, run: str | None, why: str, as_json: bool, dry_run: bool) -> None:
    """Acknowledge alerts, which stops their reminders.

    No channel sends reminders for an acknowledged alert until its finding gets worse or returns. KEY is a key from
    `opsctl alerts list`, or the name of a check for all of its findings.
    """
    if bool(keys) == is_all:
        raise click.UsageError("name the keys that opsctl alerts list shows, or give --all")
    message(acknowledge(_run(run).paths, keys, why, now(), dry_run))
    _print(as_json and not dry_run, run)


@command.command()
@click.argument("until", metavar="UNTIL|DURATION")
@run_option
@why_option
@json_option(alerts="opsctl.monitoring.alerts.listing.PrintedAlerts")
@dry_run_option
def silence(until: str, run: str | None, why: str, as_json: bool, dry_run: bool) -> None:
    """Send no messages until a time, or for a duration.

    Takes a time such as 18:00 or 2026-03-02T18:00, or a Slurm duration such as 2:00:00. Alerts that are open at the end
    are sent then.
    """
    end = moment_ahead(until, now())
    message(silence_until(_run(run).paths, end, why, now(), dry_run))
    _print(as_json and not dry_run, run)


@command.command()
@run_option
@json_option(alerts="opsctl.monitoring.alerts.listing.PrintedAlerts")
@dry_run_option
def unsilence(run: str | None, as_json: bool, dry_run: bool) -> None:
    """End the silence. The next check sends the open alerts."""
    message(end_silence(_run(run).paths, now(), dry_run))
    _print(as_json and not dry_run, run)


def _run(run: str | None) -> RunView:
    """Return the run in whose folder alerts are kept. Raises OpsctlError before its first submit."""
    seen = glance(run)
    if not seen.paths.output.is_dir():
        raise OpsctlError(f"{seen.table.name} was never submitted: {seen.paths.output} is not there yet")
    return seen


def _print(as_json: bool, run: str | None) -> None:
    if as_json:
        paths = _run(run).paths
        print_json("alerts", printed_alerts(alerts.remembered(paths), alert_log.events(paths), now(), False))
