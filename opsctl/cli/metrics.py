"""`opsctl metrics`: what the checks look at and find, as OpenMetrics text for a site's Prometheus."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import click

from opsctl.cli.selection import all_runs_option, cluster_option, run_argument
from opsctl.core.files.state_files import replace_named_file
from opsctl.core.output import show_text
from opsctl.monitoring.all_runs import RunSnapshot, findings_in, gather_many, snapshot_all
from opsctl.monitoring.check import needs_of
from opsctl.monitoring.metrics import Reading, metrics_text
from opsctl.monitoring.overview import Overview
from opsctl.monitoring.registry import DETECTORS
from opsctl.monitoring.snapshot import Part
from opsctl.run.state import register
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.run_view import view
from opsctl.slurm.cache import cached_client


@click.command()
@run_argument
@cluster_option
@all_runs_option
@click.option(
    "--output", metavar="FILE", help="Write to this file in one step, for node_exporter's textfile collector."
)
def command(run: str | None, cluster: str | None, all_runs: bool, output: str | None) -> None:
    """Print a run's numbers and findings as OpenMetrics text.

    With --output, use a file name that ends in .prom.
    """
    began = time.monotonic()
    how = (lambda paths: choose_cluster(cluster, paths), partial(cached_client, is_fresh=True))
    parts = needs_of(DETECTORS) | Part.ALL
    if all_runs:
        looks = snapshot_all(register.all_runs(), *how, parts)
    else:
        one = view(run)
        (snapshot,) = gather_many([one], *how, parts)
        looks = [RunSnapshot(one.table.name, one.paths.output, one, snapshot)]
    text = metrics_text(map(_reading, looks), time.monotonic() - began)
    if output is None:
        show_text(text)
        return
    target = Path(os.path.abspath(output))  # noqa: PTH100 - a link on the way is the caller's word
    replace_named_file(target, text, mode=0o644)


def _reading(look: RunSnapshot) -> Reading:
    state = "unreadable"
    if look.run is not None and look.snapshot is not None:
        state = Overview(look.name, look.run.table.team, look.run.paths.output, look.snapshot).state
    return Reading(look.name, str(look.output or ""), state, look.snapshot, findings_in(look, DETECTORS))
