"""`opsctl carbon`: what a training has cost in electricity and CO2e."""

from __future__ import annotations

from typing import Any

import click

from opsctl.cli.selection import json_option, run_argument


@click.group()
def command() -> None:
    """Report the electricity and CO2e of a training."""


@command.command()
@run_argument
@click.option(
    "--extrapolate", is_flag=True, help="Extrapolate the measured energy to all node hours, with an interval."
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
@json_option(carbon="opsctl.diagnosis.carbon.report.CarbonReport")
def report(run: str | None, as_json: bool, **options: Any) -> None:
    """Add up the energy and CO2e of all nodes and attempts.

    Reads the tracker files of a run. Each number is marked as measured, estimated or assumed, and each node hour counts
    once. If nothing was measured, it multiplies the attempts' GPU hours by --gpu-power-w, marked as assumed.
    """
    from opsctl.core.output import message, print_json, show_lines
    from opsctl.diagnosis.carbon.report import report_lines
    from opsctl.diagnosis.carbon.run_report import carbon_report
    from opsctl.run.state.run_view import view

    found = carbon_report(view(run), **options)
    if as_json:
        print_json("carbon", found)
        return
    show_lines(report_lines(found))
    for problem in found.problems:
        message(f"opsctl: {problem}")
