"""`opsctl carbon`: what a training has cost in electricity and CO2e."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from opsctl.cli.selection import json_option, run_argument


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
    help="For records without a host: node if each rank measured all GPUs of its node, own if only its own.",
)
@json_option(carbon="opsctl.diagnosis.carbon.report.CarbonReport")
def report(run: str | None, as_json: bool, **options: Any) -> None:
    """Add up the energy and CO2e of all nodes and attempts.

    Reads the tracker files of a run. With --folder, reads files of codecarbon 1 to 3, also one file per rank. Each
    number is marked as measured, estimated or assumed, and each node hour counts once. If nothing was measured, it
    multiplies the attempts' GPU hours by --gpu-power-w, marked as assumed.
    """
    from opsctl.core.output import message, print_json, show_lines
    from opsctl.diagnosis.carbon.report import report_lines
    from opsctl.diagnosis.carbon.run_report import Choices, carbon_report
    from opsctl.run.state.run_view import view

    seen = None if options["folders"] and run is None else view(run)
    found = carbon_report(seen, Choices(**options))
    if as_json:
        print_json("carbon", found)
        return
    show_lines(report_lines(found))
    for problem in found.problems:
        message(f"opsctl: {problem}")
