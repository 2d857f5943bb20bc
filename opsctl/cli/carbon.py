"""`opsctl carbon`: what a training has cost in electricity and CO2e."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from opsctl.cli.selection import cluster_option, json_option, run_argument

if TYPE_CHECKING:
    from opsctl.diagnosis.carbon.estimate import Building
    from opsctl.run.attempts.events import Attempt
    from opsctl.run.config.schema import CarbonTable
    from opsctl.run.state.run_view import RunView


@click.group()
def command() -> None:
    """Report the electricity and CO2e of a training."""


@command.command()
@run_argument
@click.option(
    "--folder",
    "folders",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Read this folder of energy records, without a run (repeatable).",
)
@click.option(
    "--extrapolate", is_flag=True, help="Extrapolate the measured energy to all node hours, with an interval."
)
@click.option(
    "--node-hours", type=click.FloatRange(min=0), metavar="H", help="All node hours [default: those of the attempts]."
)
@click.option("--embodied", is_flag=True, help="Add the share of manufacturing the machines.")
@click.option("--idle", is_flag=True, help="Add the power of idle and shared machines for each node hour.")
@click.option(
    "--idle-w",
    type=click.FloatRange(min=0),
    metavar="W",
    help="Watts per node for --idle [default: [carbon] idle_node_w].",
)
@click.option("--country", metavar="ABC", help="Use codecarbon's carbon intensity of this country.")
@click.option(
    "--intensity", type=click.FloatRange(min=0), metavar="G", help="Use this carbon intensity, in g CO2e per kWh."
)
@click.option("--pue", type=click.FloatRange(min=1), metavar="P", help="Power usage effectiveness of the site.")
@click.option(
    "--gpu-power-w",
    type=click.FloatRange(min=1),
    metavar="W",
    help="Watts per GPU to assume where nothing was measured.",
)
@click.option("--gpus-per-node", type=click.IntRange(1, 64), metavar="N", help="GPUs per node [default: the run's].")
@click.option(
    "--ranks-per-node", type=click.IntRange(1, 4096), metavar="N", help="Ranks per node, for records that name no host."
)
@click.option(
    "--rank-gpus",
    type=click.Choice(("node", "own")),
    default="node",
    show_default=True,
    help="GPUs that each rank measured, for records that name no host: its node's or its own.",
)
@click.option(
    "--slurm", "ask_slurm", is_flag=True, help="Also show the energy that Slurm counted, if the site enables that."
)
@cluster_option
@json_option(carbon="opsctl.diagnosis.carbon.report.CarbonReport")
def report(
    run: str | None,
    folders: tuple[Path, ...],
    extrapolate: bool,
    node_hours: float | None,
    embodied: bool,
    idle: bool,
    idle_w: float | None,
    country: str | None,
    intensity: float | None,
    pue: float | None,
    gpu_power_w: float | None,
    gpus_per_node: int | None,
    ranks_per_node: int | None,
    rank_gpus: str,
    ask_slurm: bool,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Add up the energy and CO2e of all nodes and attempts.

    Reads the tracker files of a run, or with --folder files of codecarbon 1 to 3, also one per rank. Each number is
    marked as measured, estimated or assumed, and each node hour counts once. If nothing was measured, it multiplies the
    attempts' GPU hours by --gpu-power-w, marked as assumed.
    """
    from opsctl.core.output import message, print_json, show_lines
    from opsctl.diagnosis.carbon.brief import remember
    from opsctl.diagnosis.carbon.report import Inputs, report_lines, report_of
    from opsctl.diagnosis.carbon.trackers import Placing, find
    from opsctl.run.config.schema import CarbonTable

    if country and intensity is not None:
        raise click.UsageError("--country, or --intensity: give one of them")
    view = None if folders and run is None else _view(run)
    file = view.loaded.file if view is not None and view.loaded is not None else None
    table = CarbonTable() if file is None else file.carbon
    if gpus_per_node is None and file is not None:
        gpus_per_node = file.slurm.gpus_per_node
    if embodied and gpus_per_node is None:
        raise click.UsageError("--embodied: the number of GPUs per node is unknown: give --gpus-per-node N")
    attempts = [] if view is None or folders else _attempts(view)
    known_node_s, known_from = _known(node_hours, attempts, extrapolate)
    idle_node_w = _idle_w(idle_w, table) if idle else None
    found = find([Path(one) for one in folders] or ([view.paths.codecarbon] if view else []))
    assert found is not None
    grams, grams_from = _grams(country, intensity, table, bool(found.readings))
    told = report_of(
        found,
        Inputs(
            placing=Placing(ranks_per_node, rank_gpus == "own"),
            g_per_kwh=grams,
            g_per_kwh_from=grams_from,
            pue=table.pue if pue is None else pue,
            known_node_s=known_node_s,
            known_from=known_from,
            gpus_per_node=gpus_per_node,
            extrapolate=extrapolate,
            gpu_power_w=gpu_power_w if gpu_power_w is not None else table.gpu_power_w,
            idle_node_w=idle_node_w,
            building=_building(table) if embodied else None,
            slurm_kwh=_slurm_kwh(view, attempts, cluster) if ask_slurm and view is not None else None,
        ),
    )
    is_plain = not (folders or extrapolate or embodied or idle or grams is not None or pue is not None)
    if view is not None and is_plain and found.readings:
        remember(view.paths, told)
    if as_json:
        print_json("carbon", told)
        return
    show_lines(report_lines(told))
    for problem in told.problems:
        message(f"opsctl: {problem}")


def _view(chosen: str | None) -> RunView:
    from opsctl.run.state.run_view import view

    return view(chosen)


def _attempts(view: RunView) -> list[Attempt]:
    from opsctl.run.attempts.events import read

    return read(view.paths)


def _known(node_hours: float | None, attempts: list[Attempt], is_needed: bool) -> tuple[float | None, str]:
    """All node-seconds, and whose word they are."""
    from opsctl.diagnosis.carbon.estimate import HOUR_S

    if node_hours is not None:
        return node_hours * HOUR_S, "--node-hours"
    known = _node_s(attempts)
    if is_needed and known is None:
        raise click.UsageError(
            "--extrapolate: no attempt on record says how many node hours there were: give --node-hours H, of all nodes"
        )
    return known, "the attempts on record"


def _idle_w(idle_w: float | None, table: CarbonTable) -> float:
    """Return the power of a node in addition to what trackers measure."""
    watts = table.idle_node_w if idle_w is None else idle_w
    if watts is None:
        raise click.UsageError("--idle: the power of an idle node is unknown: give --idle-w W, or [carbon] idle_node_w")
    return watts


def _node_s(attempts: list[Attempt]) -> float | None:
    """Node-seconds of all attempts, those that are open until now; None where none is on record."""
    from opsctl.core.timestamps import now

    spans = [
        len(one.nodes) * ((one.closed_at or now()) - one.opened_at).total_seconds()
        for one in attempts
        if one.opened_at is not None
    ]
    return sum(max(0.0, one) for one in spans) if spans else None


def _grams(
    country: str | None, intensity: float | None, table: CarbonTable, has_readings: bool
) -> tuple[float | None, str]:
    """Return g CO2e per kWh and its source; None if the trackers set it, or it is unknown."""
    from opsctl.diagnosis.carbon.estimate import of_country, of_table

    if intensity is not None:
        return intensity, "given"
    if country is not None:
        return of_country(country), f"{country}, by codecarbon's table"
    if has_readings:
        return None, ""
    grams = of_table(table)
    return grams, "" if grams is None else "by [carbon]"


def _slurm_kwh(view: RunView, attempts: list[Attempt], cluster: str | None) -> float | None:
    """Return the energy that Slurm counted for the attempts' jobs, in kWh; None, with a message, if it counted none."""
    from opsctl.core.output import message
    from opsctl.run.attempts.close_lost import own_end
    from opsctl.run.state.chains import recorded
    from opsctl.run.state.chosen_cluster import choose_cluster
    from opsctl.slurm.backends import client_for

    slurm, known = client_for(choose_cluster(cluster, view.paths)), recorded(view.paths)
    ends = slurm.ends({one.job_id for one in attempts})
    # Not what another job used that got the same id.
    own = [one for one in attempts if one.job_id not in ends or own_end(one, ends[one.job_id], known) is not None]
    counted = slurm.energy_j({one.job_id for one in own})
    if not counted:
        message("opsctl: Slurm has counted no energy of this run's jobs")
        return None
    missing = len({one.job_id for one in attempts} - counted.keys())
    if missing:
        message(f"opsctl: of {missing} of the run's jobs Slurm has counted no energy")
    return sum(counted.values()) / 3.6e6


def _building(table: CarbonTable) -> Building:
    from opsctl.diagnosis.carbon.estimate import Building

    return Building(table.node_kg, table.gpu_kg, table.years, table.busy_percent)
