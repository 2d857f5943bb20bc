"""`opsctl on-call`: the handover from one who was on call to the next."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime

import click

from opsctl.cli.selection import all_runs_option, cluster_option, json_option, run_argument
from opsctl.core.output import message, print_json, show_lines
from opsctl.core.timestamps import now
from opsctl.monitoring.all_runs import snapshot_all
from opsctl.monitoring.on_call import Facts, handover, last_asked, read_facts, remember_asked, since_of
from opsctl.monitoring.overview import SCREEN_PARTS
from opsctl.monitoring.runner import gather
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.register import all_runs
from opsctl.run.state.run_view import view
from opsctl.slurm.cache import cached_client
from opsctl.ui.status.all_runs import LIST_PARTS
from opsctl.ui.status.on_call import handover_lines


@click.command()
@run_argument
@all_runs_option
@click.option(
    "--since",
    metavar="12h|TIME|last",
    default="12h",
    show_default=True,
    help="Report events from this time; last: since your previous handover.",
)
@cluster_option
@json_option(hand_overs="list[opsctl.monitoring.on_call.HandOver]")
def command(run: str | None, all_runs: bool, since: str, cluster: str | None, as_json: bool) -> None:
    """Print what happened, what is open and what is queued, as text for a chat.

    Lists attempts, chains, requests, revisions, alerts, checkpoints and rollbacks since a time, findings with their age
    and who acknowledged them, and the queue. Without Slurm only the queue is missing.
    """
    moment, asked = now(), last_asked(os.environ)

    def from_when(output: str) -> datetime:
        return since_of(since, moment, asked.get(output))

    from_when("")  # refuses before anything is looked at
    facts = _all(cluster, from_when) if all_runs else [_one(run, cluster, from_when)]
    told = [(one, handover(one, from_when(str(one.output)), moment)) for one in facts]
    if as_json:
        print_json("hand_overs", [over for _, over in told])
    else:
        for number, (one, over) in enumerate(told):
            if number:
                show_lines([""])
            show_lines(handover_lines(one, over, from_when(str(one.output)), moment))
        if not told:
            message("no runs: opsctl submit puts a run on the list")
    remember_asked({str(one.output): moment for one in facts if one.overview is not None}, os.environ)


def _one(chosen: str | None, cluster: str | None, from_when: Callable[[str], datetime]) -> Facts:
    run = view(chosen)
    snapshot = gather(run, cached_client(choose_cluster(cluster, run.paths)), SCREEN_PARTS, is_tolerant=True)
    return read_facts(run, snapshot, from_when(str(run.paths.output)))


def _all(cluster: str | None, from_when: Callable[[str], datetime]) -> list[Facts]:
    looks = snapshot_all(all_runs(), lambda paths: choose_cluster(cluster, paths), cached_client, LIST_PARTS)
    return [
        Facts(look.name, look.output, None, problem=look.problem)
        if look.run is None or look.snapshot is None
        else read_facts(look.run, look.snapshot, from_when(str(look.run.paths.output)), LIST_PARTS)
        for look in looks
    ]
