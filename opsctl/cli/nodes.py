"""The command `opsctl nodes`: the state of nodes, their jobs, the evidence against them, and a report to support."""

from __future__ import annotations

import click

from opsctl.cli.selection import cluster_option, json_option, run_option
from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.output import message, print_json, show_lines, show_text
from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes import site_report
from opsctl.diagnosis.nodes.exclusion import Wanted, wanted_by
from opsctl.diagnosis.nodes.exclusion_list import evidence_for, place_of
from opsctl.diagnosis.nodes.listing import SeenNode, by_node, list_nodes, node_lines
from opsctl.run.config.profile import nodes_table
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
@run_option
@cluster_option
@json_option(report="opsctl.diagnosis.nodes.site_report.DraftedReport")
def report(nodes: tuple[str, ...], run: str | None, cluster: str | None, as_json: bool) -> None:
    """Draft a message about bad nodes to the site's support.

    It lists what was observed, when, and in which jobs. The default is all nodes with recent evidence.
    """
    view, seen = _seen(nodes, run, cluster)
    evidence = by_node(evidence_for(view.paths, place_of(view.paths, nodes_table())))
    seen = seen if nodes else [one for one in seen if one.score > 0.01]
    site_report.refuse_healthy(seen, evidence)
    if not seen:
        raise OpsctlError("no evidence against any node: nothing to report")
    title, body = site_report.draft(seen, evidence, account_name(), now())
    if as_json:
        names = tuple(one.node for one in seen)
        print_json("report", site_report.DraftedReport(nodes=names, title=title, body=body))
    else:
        show_text(f"Subject: {title}\n\n{body}\n")


def _seen(nodes: tuple[str, ...], run: str | None, cluster: str | None) -> tuple[RunView, list[SeenNode]]:
    seen = view(run)
    client = client_for(choose_cluster(cluster, seen.paths))
    names = [one for folded in nodes for one in expand_nodes(folded)]
    wanted = wanted_by(seen.paths, seen.file.slurm) if seen.file is not None else Wanted(None, 1)
    return seen, list_nodes(seen.paths, client, wanted, names, now())
