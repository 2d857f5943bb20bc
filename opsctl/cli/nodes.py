"""The command `opsctl nodes`: the state of nodes, their jobs, the evidence against them, and a report to support."""

from __future__ import annotations

import os

import click

from opsctl.cli.selection import cluster_option, json_option, run_option
from opsctl.core.account import account_and_host, account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.output import message, print_json, show_lines, show_text
from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes import site_report
from opsctl.diagnosis.nodes.exclusion import Wanted, wanted_by
from opsctl.diagnosis.nodes.exclusion_list import evidence_for, place_of
from opsctl.diagnosis.nodes.listing import SeenNode, by_node, list_nodes, node_lines
from opsctl.monitoring.alerts.channels import alert_settings, channels_of
from opsctl.monitoring.alerts.delivery import mail_to
from opsctl.run.config.profile import nodes_table
from opsctl.run.state.alerts import made
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.run_view import RunView, view
from opsctl.slurm.backends import client_for
from opsctl.slurm.nodes import expand_nodes

_COMMANDS = ("show", "report")


class _ShowByDefault(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`opsctl nodes [NODE...]` is `opsctl nodes show [NODE...]`."""
        if not args or (args[0] not in _COMMANDS and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowByDefault)
def command() -> None:
    """Show nodes, their jobs and their recorded problems. The default command is `show`."""


@command.command()
@click.argument("nodes", nargs=-1, metavar="[NODE...]")
@run_option
@cluster_option
@json_option(nodes="list[opsctl.diagnosis.nodes.listing.SeenNode]")
def show(nodes: tuple[str, ...], run: str | None, cluster: str | None, as_json: bool) -> None:
    """Show the state, jobs and evidence of nodes.

    The default is the nodes of the run's partition. Also shows Slurm's reason for the state, and if opsctl excludes the
    node.
    """
    _, seen = _seen(nodes, run, cluster)
    if as_json:
        print_json("nodes", seen)
    elif seen:
        show_lines(node_lines(seen))
    else:
        message("no nodes: Slurm has no default partition; name nodes, or set [slurm] partition")


@command.command()
@click.argument("nodes", nargs=-1, metavar="[NODE...]")
@click.option("--send", "is_to_be_sent", is_flag=True, help="Mail the message to [nodes] support of the profile.")
@run_option
@cluster_option
@json_option(report="opsctl.diagnosis.nodes.site_report.DraftedReport")
def report(nodes: tuple[str, ...], is_to_be_sent: bool, run: str | None, cluster: str | None, as_json: bool) -> None:
    """Draft a message about bad nodes to the site's support.

    It lists what was observed, when, and in which jobs. The default is all nodes with new evidence. --send mails it to
    the profile's [nodes] support by the first mail channel of [alerts]. A node is reported again only with new
    evidence.
    """
    view, seen = _seen(nodes, run, cluster)
    table = nodes_table()
    place = place_of(view.paths, table)
    evidence = by_node(evidence_for(view.paths, place))
    with site_report.reporting(place) as sent:
        if not nodes:
            seen = [one for one in seen if one.score > 0.01]
            seen = [
                one for one in seen if site_report.already_reported(one.node, evidence.get(one.node, []), sent) is None
            ]
        site_report.refuse_healthy(seen, evidence)
        if not seen:
            raise OpsctlError("no new evidence against any node: nothing to report")
        names = tuple(one.node for one in seen)
        title, body = site_report.draft(seen, evidence, account_name(), now())
        if is_to_be_sent:
            if table.support is None:
                raise OpsctlError('no recipient: write support = "ADDRESS" under [nodes] of the profile')
            site_report.refuse_reported(names, evidence, sent)
            _mail(view, table.support, title, body)
            told = [
                site_report.SentReport(
                    node=name,
                    at=now(),
                    by=account_and_host(),
                    to=table.support,
                    seen_until=max((one.at for one in evidence.get(name, [])), default=now()),
                )
                for name in names
            ]
            site_report.record_sent(place, told)
            message(f"sent to {table.support}")
    if as_json:
        drafted = site_report.DraftedReport(
            to=table.support, nodes=names, title=title, body=body, is_sent=is_to_be_sent
        )
        print_json("report", drafted)
        return
    show_text(
        f"To: {table.support or 'not set: write support under [nodes] of the profile'}\nSubject: {title}\n\n{body}\n"
    )
    if not is_to_be_sent:
        message("not sent: --send does that")


def _seen(nodes: tuple[str, ...], run: str | None, cluster: str | None) -> tuple[RunView, list[SeenNode]]:
    seen = view(run)
    client = client_for(choose_cluster(cluster, seen.paths))
    names = [one for folded in nodes for one in expand_nodes(folded)]
    wanted = wanted_by(seen.paths, seen.file.slurm) if seen.file is not None else Wanted(None, 1)
    return seen, list_nodes(seen.paths, client, wanted, names, now())


def _mail(view: RunView, address: str, title: str, body: str) -> None:
    """Send the mail; one that may have arrived counts as sent. Raises OpsctlError if it was not sent."""
    letter = made("report", now(), title, body, "warning", ())
    done = mail_to(view.paths, view.table.name, channels_of(alert_settings(view)), address, letter, os.environ)
    result = done.reports[-1].result if done.reports else "failed"
    why = done.problem or (done.reports[-1].why if done.reports else "")
    if result == "unknown":
        message(f"opsctl: whether it arrived is not known: {why}")
    elif result != "sent":
        raise OpsctlError(f"not sent by {done.channel}: {why}")
