"""`opsctl exclude`: the nodes that nothing is submitted to, by people's word and by evidence."""

from __future__ import annotations

import click
import msgspec

from opsctl.cli.selection import cluster_option, json_option, moment_ahead, run_option
from opsctl.core.errors import OpsctlError
from opsctl.core.output import message, print_json, show_lines
from opsctl.core.timestamps import iso, now
from opsctl.diagnosis.nodes import exclusion
from opsctl.diagnosis.nodes.exclusion import Wanted, keep_and_apply, read_listed, used_now, wanted_by
from opsctl.diagnosis.nodes.exclusion_list import ListedExclusion, place_of, read_excluded
from opsctl.diagnosis.nodes.judging import ends_of
from opsctl.diagnosis.nodes.node_evidence import PERSONS
from opsctl.run.attempts import events as attempts
from opsctl.run.config.profile import nodes_table
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.run_view import RunView, glance, view
from opsctl.slurm.backends import client_for
from opsctl.slurm.cache import CachedSlurm
from opsctl.slurm.client import SlurmClient, SlurmReader
from opsctl.slurm.nodes import expand_nodes


@click.group()
def command() -> None:
    """Exclude nodes from a run's new and queued jobs.

    opsctl also excludes nodes by itself after evidence from several attempts; see docs/nodes.md.
    """


@command.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@click.option("--why", required=True, metavar="TEXT", help="The reason, shown to the group.")
@click.option(
    "--until",
    metavar="TIME",
    help="End of the exclusion: 18:00, 2026-03-02T18:00, or a duration, 2-0 [default: 30 days].",
)
@run_option
@cluster_option
def add(nodes: tuple[str, ...], why: str, until: str | None, run: str | None, cluster: str | None) -> None:
    """Exclude nodes, such as x03 or x[03-04]."""
    if not why.strip():
        raise click.UsageError("--why is empty: give the reason for the exclusion")
    seen, client, looks, wanted = _asked(run, cluster)
    names = list(dict.fromkeys(one for folded in nodes for one in expand_nodes(folded)))
    end = moment_ahead(until, now()) if until else now() + PERSONS
    place = place_of(seen.paths, nodes_table())
    known = {node.name for node in looks.nodes()}
    if unknown := [name for name in names if name not in known]:
        raise OpsctlError(f"Slurm has no node {', '.join(unknown)}: sinfo lists them; nothing was excluded")
    partition, there = wanted.nodes_for(looks)
    listed = {one.node for one in read_excluded(place).in_force(now()) if one.is_a_persons} | set(names)
    serving = [node.name for node in there if not node.is_out_of_service]
    left = [name for name in serving if name not in listed]
    if len(left) < wanted.nodes <= len(serving):
        raise OpsctlError(
            f"that would leave {len(left)} of the {len(serving)} nodes of partition {partition} that are in service, "
            f"and the run needs {wanted.nodes}: nothing was excluded"
        )
    exclusion.add(place, names, why.strip(), end)
    message(f"excluded until {iso(end, 'minutes')}: {', '.join(names)}")
    _apply(seen, client, looks, wanted)


@command.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@run_option
@cluster_option
def remove(nodes: tuple[str, ...], run: str | None, cluster: str | None) -> None:
    """Allow nodes again, and discard their recorded problems."""
    seen, client, looks, wanted = _asked(run, cluster)
    names = list(dict.fromkeys(one for folded in nodes for one in expand_nodes(folded)))
    exclusion.remove(place_of(seen.paths, nodes_table()), names, ends_of(attempts.read(seen.paths)))
    message(f"no longer excluded: {', '.join(names)}")
    _apply(seen, client, looks, wanted)


@command.command("list")
@click.option("--all", "with_past", is_flag=True, help="Include exclusions that have ended.")
@run_option
@cluster_option
@json_option(exclusions="list[opsctl.diagnosis.nodes.exclusion_list.ListedExclusion]")
def list_(with_past: bool, run: str | None, cluster: str | None, as_json: bool) -> None:
    """List the excluded nodes, with end, author and reason.

    Also shows which excluded nodes the run still uses, if Slurm answers.
    """
    place, found = read_listed(glance(run).paths)
    used = _used(run, cluster) if found.in_force(now()) else {}
    chosen = [
        ListedExclusion(**msgspec.structs.asdict(one), kept_in=used.get(one.node, "") if one.stands(now()) else "")
        for one in found.nodes
        if with_past or one.stands(now())
    ]
    if as_json:
        print_json("exclusions", chosen)
    elif chosen:
        show_lines(line for one in chosen for line in _lines(one))
    else:
        message(f"no node is excluded ({place.excluded})")


def _used(run: str | None, cluster: str | None) -> dict[str, str]:
    """Return the listed nodes that the run still uses, and why; print what prevents an answer."""
    try:
        seen, _, looks, wanted = _asked(run, cluster)
        return used_now(seen.paths, looks, wanted)
    except (OpsctlError, OSError) as error:
        message(f"opsctl: not known whether the run has nodes enough without these: {error}")
        return {}


def _lines(one: ListedExclusion) -> list[str]:
    until = iso(one.until, "minutes")
    if one.removed_at is not None:
        how = f"ended {iso(one.removed_at, 'minutes')} by {one.removed_by}"
    elif one.kept_in:
        how = f"listed until {until}, but the run still uses it: {one.kept_in};"
    else:
        how = f"excluded until {until}" if one.stands(now()) else f"ended {until}"
    times = f", the {one.times}. time" if one.times > 1 else ""
    first = f"{one.node}  {how}  by {one.by} since {iso(one.since, 'minutes')}{times}: {one.why}"
    return [first, *(f"    {line}" for line in one.evidence)]


def _asked(run: str | None, cluster: str | None) -> tuple[RunView, SlurmClient, SlurmReader, Wanted]:
    """Return the run, its Slurm, a cached reader of it (sinfo of 1,000 nodes takes 50 ms), and the run's wishes."""
    seen = view(run)
    file = seen.file
    wanted = wanted_by(seen.paths, file.slurm) if file is not None else Wanted(None, 1)
    client = client_for(choose_cluster(cluster, seen.paths))
    return seen, client, CachedSlurm(lambda: client), wanted


def _apply(seen: RunView, client: SlurmClient, looks: SlurmReader, wanted: Wanted) -> None:
    """Apply the list to the queue and print the changes, or that a job cannot be changed. The list stays in force."""
    for line in keep_and_apply(seen.paths, client, wanted, looks):
        message(line)
