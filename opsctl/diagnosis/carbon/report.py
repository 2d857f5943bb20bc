"""The carbon report as values and as text. Every line is marked as measured, estimated or assumed. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, Struct

from opsctl.core.output import table_lines
from opsctl.diagnosis.carbon.estimate import HOUR_S, Unit, rest_like
from opsctl.diagnosis.carbon.trackers import Found, attempt_of, counted_once, covered_s, spans_of
from opsctl.run.planning.section import amount, whole
from trainer.formats.attempt.carbon import Reading

How = Literal["measured", "estimated", "assumed"]
_PARTS = {"gpu": "GPUs", "cpu": "CPUs", "ram": "memory"}
_READ_FROM_HARDWARE = {"intel_rapl", "nvml", "amdsmi"}


class ReportLine(Struct, frozen=True, kw_only=True):
    """One amount with its source."""

    what: Annotated[str, Meta(description="Name of the amount.")]
    kwh: Annotated[float | None, Meta(description="Electricity in kWh, PUE included; null if there is none.")]
    kg: Annotated[float | None, Meta(description="CO2e in kg; null without a value for a kWh.")]
    how: Annotated[How, Meta(description="Kind of its source.")]
    why: Annotated[str, Meta(description="The method or the assumption.")]
    low_kg: Annotated[float | None, Meta(description="Lower end of the 95 % interval, if any.")] = None
    high_kg: Annotated[float | None, Meta(description="Its upper end.")] = None
    low_kwh: Annotated[float | None, Meta(description="Lower end in kWh.")] = None
    high_kwh: Annotated[float | None, Meta(description="Upper end in kWh.")] = None


class CarbonReport(Struct, frozen=True, kw_only=True):
    """The energy and carbon footprint of a training."""

    files: Annotated[int, Meta(description="Files of energy records.")]
    trackers: Annotated[int, Meta(description="Trackers in them, each counted once.")]
    nodes: Annotated[int, Meta(description="Measured nodes.")]
    attempts: Annotated[int, Meta(description="Measured jobs or array tasks.")]
    measured_node_hours: Annotated[float, Meta(description="Node hours in which a tracker ran.")]
    known_node_hours: Annotated[float | None, Meta(description="Node hours of all attempts; null if unknown.")]
    g_per_kwh: Annotated[float | None, Meta(description="CO2e of a kWh, in g.")]
    g_per_kwh_from: Annotated[str, Meta(description="Source of that value.")]
    pue: Annotated[float, Meta(description="Factor on the machines' electricity for cooling and losses.")]
    kwh: Annotated[float, Meta(description="Sum of all lines.")]
    kg: Annotated[float | None, Meta(description="Sum of all lines.")]
    lines: Annotated[list[ReportLine], Meta(description="The amounts.")]
    assumptions: Annotated[list[str], Meta(description="Assumptions in place of missing data.")]
    problems: Annotated[list[str], Meta(description="Files that could not be read.")]


@dataclass(frozen=True)
class Inputs:
    """The inputs of a report; None: unknown."""

    g_per_kwh: float | None = None  # replaces the trackers' value
    g_per_kwh_from: str = ""
    pue: float = 1.0
    known_node_s: float | None = None  # of all attempts
    gpus_per_node: int | None = None
    extrapolate: bool = False
    gpu_power_w: float | None = None  # of a GPU with its share of the node, if nothing was measured


def report_of(found: Found, asked: Inputs) -> CarbonReport:
    """Add up everything."""
    trackers = found.readings
    parts = counted_once(span for one in trackers for span in spans_of(one))
    measured_s = _node_s(trackers)
    grams, grams_from = _grams(trackers, asked)
    maker = _LineMaker(asked.pue, grams)
    lines = [maker.line(_PARTS[part], parts[part], *_how(trackers, part)) for part in _PARTS if parts.get(part)]
    assumptions = list(_assumptions(trackers, asked))
    known_s = asked.known_node_s
    if not trackers and known_s and asked.gpu_power_w and asked.gpus_per_node:
        hours = known_s / HOUR_S * asked.gpus_per_node
        why = f"{hours:,.1f} GPU hours of the attempts on record at {asked.gpu_power_w:g} W each: nothing was measured"
        lines.append(maker.line("GPUs with their nodes", hours * asked.gpu_power_w / 1000, "assumed", why))
    elif asked.extrapolate and known_s is not None and trackers:
        lines += _rest(maker, trackers, known_s - measured_s)
    kgs = [line.kg for line in lines]
    return CarbonReport(
        files=found.files,
        trackers=len(trackers),
        nodes=len({one.beside.host for one in trackers}),
        attempts=len({attempt_of(one) for one in trackers}),
        measured_node_hours=measured_s / HOUR_S,
        known_node_hours=None if known_s is None else known_s / HOUR_S,
        g_per_kwh=grams,
        g_per_kwh_from=grams_from,
        pue=asked.pue,
        kwh=sum(line.kwh or 0.0 for line in lines),
        kg=None if None in kgs else sum(filter(None, kgs)),
        lines=lines,
        assumptions=assumptions,
        problems=list(found.problems),
    )


@dataclass(frozen=True)
class _LineMaker:
    """Makes lines from the machines' kWh."""

    pue: float
    grams: float | None

    def line(
        self, what: str, kwh: float, how: How, why: str, low: float | None = None, high: float | None = None
    ) -> ReportLine:
        return ReportLine(
            what=what,
            kwh=kwh * self.pue,
            kg=self._kg(kwh),
            how=how,
            why=why,
            low_kwh=self._kwh(low),
            high_kwh=self._kwh(high),
            low_kg=self._kg(low),
            high_kg=self._kg(high),
        )

    def _kwh(self, kwh: float | None) -> float | None:
        return None if kwh is None else kwh * self.pue

    def _kg(self, kwh: float | None) -> float | None:
        return None if kwh is None or self.grams is None else kwh * self.pue * self.grams / 1000


def _node_s(trackers: Iterable[Reading]) -> float:
    by_node: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in trackers:
        by_node[one.beside.host].append((one.began_s, one.ended_s))
    return sum(covered_s(stretches) for stretches in by_node.values())


def _grams(trackers: Sequence[Reading], asked: Inputs) -> tuple[float | None, str]:
    if asked.g_per_kwh is not None:
        return asked.g_per_kwh, asked.g_per_kwh_from
    kwh = sum(one.kwh for one in trackers)
    if not kwh:
        return None, "set --country or --intensity"
    return sum(one.emissions_kg for one in trackers) / kwh * 1000, "from the trackers"


def _how(trackers: Sequence[Reading], part: str) -> tuple[How, str]:
    methods = {
        getattr(one.beside, f"{part}_method") or "codecarbon, method unknown"
        for one in trackers
        if getattr(one, f"{part}_kwh") > 0
    }
    why = ", ".join(sorted(methods))
    return ("measured" if methods <= _READ_FROM_HARDWARE else "estimated"), why


def _rest(maker: _LineMaker, trackers: Sequence[Reading], rest_s: float) -> list[ReportLine]:
    if rest_s <= 0:
        return []
    attempts = _units(trackers, attempt_of)
    units, of = (
        (attempts, "attempts")
        if len(attempts) > 1
        else (_units(trackers, lambda one: one.beside.host), "nodes of one attempt")
    )
    rest = rest_like(units, rest_s)
    if rest is None:
        return []
    hours = amount(rest_s / HOUR_S)
    why = f"{hours} node hours of the attempts on record without a tracker, at the mean power of the measured ones"
    if rest.low_kwh is None:
        why += "; only one unit was measured, so there is no interval"
    else:
        why += f"; 95 % prediction interval from the scatter of {len(units)} {of}"
    return [maker.line("time without a tracker", rest.kwh, "estimated", why, rest.low_kwh, rest.high_kwh)]


def _units(trackers: Sequence[Reading], by: Callable[[Reading], str]) -> list[Unit]:
    groups: dict[str, list[Reading]] = defaultdict(list)
    for one in trackers:
        groups[by(one)].append(one)
    return [
        Unit(_node_s(group), sum(counted_once(span for one in group for span in spans_of(one)).values()))
        for _, group in sorted(groups.items())
    ]


def _assumptions(trackers: Sequence[Reading], asked: Inputs) -> Iterable[str]:
    if any(one.beside.host_share < 1 for one in trackers):
        yield "on a shared node, each job has a share of CPU and memory energy by its CPUs"
    if trackers and asked.pue == 1.0:
        yield "PUE 1: cooling and losses of the site are not included (--pue, or [carbon] pue)"
    known = asked.known_node_s
    if known is not None and trackers and not asked.extrapolate and known > _node_s(trackers) * 1.001:
        rest = (known - _node_s(trackers)) / HOUR_S
        yield f"{amount(rest)} node hours of the attempts on record had no tracker and are not included (--extrapolate)"


def report_lines(report: CarbonReport) -> list[str]:
    """Return the lines of the report: amounts with their sources, then assumptions."""
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
    rows.append(("total", energy_text(report.kwh), mass_text(report.kg), "", ""))
    lines = [seen, "", *table_lines(rows, "<>><")]
    grams = "unknown" if report.g_per_kwh is None else f"{report.g_per_kwh:,.4g} g CO2e per kWh"
    lines += ["", f"carbon intensity: {grams} ({report.g_per_kwh_from}); PUE {report.pue:g}"]
    return [*lines, *(f"assumed: {one}" for one in report.assumptions)]


def _count(number: int, what: str) -> str:
    return f"{whole(number)} {what}{'' if number == 1 else 's'}"


def _row(line: ReportLine) -> tuple[str, str, str, str, str]:
    why = line.why
    if line.low_kwh is not None and line.high_kwh is not None:
        why = f"{energy_text(line.low_kwh)} to {energy_text(line.high_kwh)}: {why}"
    return line.what, "" if line.kwh is None else energy_text(line.kwh), mass_text(line.kg), line.how, why


def energy_text(kwh: float) -> str:
    """Format energy: `12.30 kWh`, `1.20 MWh`, `3.10 GWh`."""
    for size, unit in ((1e6, "GWh"), (1e3, "MWh")):
        if kwh >= size:
            return f"{amount(kwh / size)} {unit}"
    return f"{amount(kwh)} kWh"


def mass_text(kg: float | None) -> str:
    """Format mass: `0.70 kg CO2e`, `24.69 t CO2e`; empty if unknown."""
    if kg is None:
        return ""
    return f"{amount(kg / 1000)} t CO2e" if kg >= 1000 else f"{amount(kg)} kg CO2e"


def short_line(report: CarbonReport) -> str:
    """Return one line for `opsctl status`: the trackers' sum."""
    kg = mass_text(report.kg)
    return f"{energy_text(report.kwh)}{f', {kg}' if kg else ''} in {amount(report.measured_node_hours)} node hours"
