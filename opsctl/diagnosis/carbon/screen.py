"""A carbon report as text. Pure."""

from __future__ import annotations

from opsctl.core.output import table_lines
from opsctl.diagnosis.carbon.report import CarbonReport, ReportLine
from opsctl.run.planning.section import amount, whole


def report_lines(report: CarbonReport) -> list[str]:
    """The screen: what there is, line by line how it is known, what was assumed."""
    if report.trackers:
        seen = (
            f"{_count(report.trackers, 'tracker')} in {_count(report.files, 'file')}: {_count(report.nodes, 'node')}, "
            f"{_count(report.attempts, 'attempt')}, {amount(report.measured_node_hours)} node hours"
        )
    else:
        seen = "no energy records"
    if report.known_node_hours is not None:
        seen += f" of {amount(report.known_node_hours)} known"
    rows = [_row(line) for line in report.lines]
    rows.append(("all of it", energy_text(report.kwh), mass_text(report.kg), "", ""))
    rows += [_row(line) for line in report.beside]
    lines = [seen, "", *table_lines(rows, "<>><")]
    grams = "not known" if report.g_per_kwh is None else f"{report.g_per_kwh:,.4g} g CO2e"
    lines += ["", f"a kWh comes to {grams} ({report.g_per_kwh_from}); PUE {report.pue:g}"]
    return [*lines, *(f"assumed: {one}" for one in report.assumptions)]


def _count(number: int, what: str) -> str:
    return f"{whole(number)} {what}{'' if number == 1 else 's'}"


def _row(line: ReportLine) -> tuple[str, str, str, str, str]:
    why = line.why
    if line.low_kwh is not None and line.high_kwh is not None:
        why = f"{energy_text(line.low_kwh)} to {energy_text(line.high_kwh)}: {why}"
    return line.what, "" if line.kwh is None else energy_text(line.kwh), mass_text(line.kg), line.how, why


def energy_text(kwh: float) -> str:
    """`12.30 kWh`, `1.20 MWh`, `3.10 GWh`."""
    for size, unit in ((1e6, "GWh"), (1e3, "MWh")):
        if kwh >= size:
            return f"{amount(kwh / size)} {unit}"
    return f"{amount(kwh)} kWh"


def mass_text(kg: float | None) -> str:
    """`0.70 kg CO2e`, `24.69 t CO2e`; empty where it is not known."""
    if kg is None:
        return ""
    return f"{amount(kg / 1000)} t CO2e" if kg >= 1000 else f"{amount(kg)} kg CO2e"


def short_line(report: CarbonReport) -> str:
    """One line for who looks at the run: what trackers have seen."""
    kg = mass_text(report.kg)
    return f"{energy_text(report.kwh)}{f', {kg}' if kg else ''} in {amount(report.measured_node_hours)} node hours"
