"""The carbon report of a run, with the choices of the command line."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.core.errors import UsageError
from opsctl.core.timestamps import now
from opsctl.diagnosis.carbon.brief import remember
from opsctl.diagnosis.carbon.estimate import of_country, of_table
from opsctl.diagnosis.carbon.report import CarbonReport, Inputs, report_of
from opsctl.diagnosis.carbon.trackers import find
from opsctl.run.attempts.events import Attempt, read
from opsctl.run.config.schema import CarbonTable
from opsctl.run.state.run_view import RunView


def carbon_report(
    run: RunView,
    *,
    extrapolate: bool = False,
    country: str | None = None,
    intensity: float | None = None,
    pue: float | None = None,
    gpu_power_w: float | None = None,
) -> CarbonReport:
    """Return the report, and record it for `opsctl status` if no option changed it.

    intensity: g CO2e per kWh. Raises UsageError if an option lacks a value that it needs.
    """
    if country and intensity is not None:
        raise UsageError("--country and --intensity cannot be combined")
    file = None if run.loaded is None else run.loaded.file
    table = CarbonTable() if file is None else file.carbon
    node_s = _node_s(read(run.paths))
    if extrapolate and node_s is None:
        raise UsageError("--extrapolate: no attempt on record says how many node hours there were")
    found = find(run.paths.codecarbon)
    assert found is not None, "there is no limit"
    grams, grams_from = intensity, "given"
    if country is not None:
        grams, grams_from = of_country(country), f"{country}, by codecarbon's table"
    elif intensity is None and not found.readings:
        grams, grams_from = of_table(table), "by [carbon]"
    report = report_of(
        found,
        Inputs(
            g_per_kwh=grams,
            g_per_kwh_from=grams_from,
            pue=table.pue if pue is None else pue,
            known_node_s=node_s,
            gpus_per_node=None if file is None else file.slurm.gpus_per_node,
            extrapolate=extrapolate,
            gpu_power_w=table.gpu_power_w if gpu_power_w is None else gpu_power_w,
        ),
    )
    if found.readings and grams is None and not extrapolate and pue is None:
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
