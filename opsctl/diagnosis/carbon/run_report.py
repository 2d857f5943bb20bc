"""The carbon report of a run, or of folders with energy records, with the choices of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import UsageError
from opsctl.core.timestamps import now
from opsctl.diagnosis.carbon.brief import remember
from opsctl.diagnosis.carbon.estimate import HOUR_S, Building, of_country, of_table
from opsctl.diagnosis.carbon.report import CarbonReport, Inputs, report_of
from opsctl.diagnosis.carbon.trackers import Placing, find
from opsctl.run.attempts.events import Attempt, read
from opsctl.run.config.schema import CarbonTable
from opsctl.run.state.run_view import RunView


@dataclass(frozen=True)
class Choices:
    """The options of `opsctl carbon report`; None: not given."""

    folders: tuple[Path, ...] = ()
    extrapolate: bool = False
    node_hours: float | None = None
    embodied: bool = False
    idle: bool = False
    idle_w: float | None = None
    country: str | None = None
    intensity: float | None = None  # g CO2e per kWh
    pue: float | None = None
    gpu_power_w: float | None = None
    gpus_per_node: int | None = None
    ranks_per_node: int | None = None
    rank_gpus: str = "node"


def carbon_report(run: RunView | None, asked: Choices) -> CarbonReport:
    """Return the report, and record it for `opsctl status` if no option changed it.

    run: None if only folders are read. Raises UsageError if an option lacks a value that it needs.
    """
    if asked.country and asked.intensity is not None:
        raise UsageError("--country and --intensity cannot be combined")
    file = run.loaded.file if run is not None and run.loaded is not None else None
    table = CarbonTable() if file is None else file.carbon
    gpus_per_node = asked.gpus_per_node or (None if file is None else file.slurm.gpus_per_node)
    if asked.embodied and gpus_per_node is None:
        raise UsageError("--embodied: the number of GPUs per node is unknown: give --gpus-per-node N")
    idle_node_w = table.idle_node_w if asked.idle_w is None else asked.idle_w
    if asked.idle and idle_node_w is None:
        raise UsageError("--idle: the power of an idle node is unknown: give --idle-w W, or [carbon] idle_node_w")
    attempts = [] if run is None or asked.folders else read(run.paths)
    node_s = _node_s(attempts) if asked.node_hours is None else asked.node_hours * HOUR_S
    if asked.extrapolate and node_s is None:
        raise UsageError(
            "--extrapolate: no attempt on record says how many node hours there were: give --node-hours H, of all nodes"
        )
    found = find(list(asked.folders) or ([run.paths.codecarbon] if run else []))
    assert found is not None, "there is no limit"
    grams, grams_from = _grams(asked, table, bool(found.readings))
    building = Building(table.node_kg, table.gpu_kg, table.years, table.busy_percent)
    report = report_of(
        found,
        Inputs(
            placing=Placing(asked.ranks_per_node, asked.rank_gpus == "own"),
            g_per_kwh=grams,
            g_per_kwh_from=grams_from,
            pue=table.pue if asked.pue is None else asked.pue,
            known_node_s=node_s,
            known_from="the attempts on record" if asked.node_hours is None else "--node-hours",
            gpus_per_node=gpus_per_node,
            extrapolate=asked.extrapolate,
            gpu_power_w=table.gpu_power_w if asked.gpu_power_w is None else asked.gpu_power_w,
            idle_node_w=idle_node_w if asked.idle else None,
            building=building if asked.embodied else None,
        ),
    )
    changed = asked.folders or asked.extrapolate or asked.embodied or asked.idle or asked.pue is not None
    if run is not None and found.readings and grams is None and not changed:
        remember(run.paths, report)
    return report


def _node_s(attempts: Sequence[Attempt]) -> float | None:
    """Return the node-seconds of all attempts, of open ones until now; None without a recorded attempt."""
    spans = [
        len(one.nodes) * ((one.closed_at or now()) - one.opened_at).total_seconds()
        for one in attempts
        if one.opened_at is not None
    ]
    return sum(max(0.0, one) for one in spans) if spans else None


def _grams(asked: Choices, table: CarbonTable, has_readings: bool) -> tuple[float | None, str]:
    """Return g CO2e per kWh and its source; None if the trackers set it, or it is unknown."""
    if asked.intensity is not None:
        return asked.intensity, "given"
    if asked.country is not None:
        return of_country(asked.country), f"{asked.country}, by codecarbon's table"
    grams = None if has_readings else of_table(table)
    return grams, "" if grams is None else "by [carbon]"
