"""docs/simulation.md and its picture, from the outcomes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.simulate import calibration, figures
from benchmarks.simulate.experiments import Between, Summary
from benchmarks.simulate.picture import Bars, Curve, drawn
from benchmarks.simulate.policies import OURS, WAYS, WITHOUT
from benchmarks.simulate.study import SIZE, SIZES, Study
from benchmarks.simulate.words import markdown, percent, rows

PICTURE = "simulation.svg"


def page(study: Study) -> str:
    """All of it."""
    parts = [_prose("head")]
    for setting in study.settings:
        parts += [f"## {SIZE:,} nodes, {setting}\n", markdown(rows(_ways(study, setting))) + "\n"]
    parts += ["Percent of the wall time, with the losses by part ([goodput](goodput.md)).\n", _worth(study)]
    parts += [_sizes(study), _changed(study), _calibrated(study), inputs(), _prose("limits")]
    return "\n".join(parts)


def picture(study: Study) -> str:
    """The SVG."""
    panels = {
        setting: [
            Curve(way.name, [(nodes, study.found[setting, nodes, way.name].goodput) for nodes in SIZES]) for way in WAYS
        ]
        for setting in study.settings
    }
    bars = [
        Bars(f"worth at {SIZE:,} nodes, % of the time, {setting}", list(_worths(study, setting).items()))
        for setting in study.settings
    ]
    return drawn(panels, bars)


def inputs() -> str:
    """Every number that goes in, with its source."""
    table = [
        ("quantity", "published value", "source"),
        *((one.what, one.printed, one.source) for one in figures.FIGURES),
    ]
    return f"## Input\n\n{markdown(table)}\n"


def _ways(study: Study, setting: str) -> Mapping[str, Summary]:
    return {way.name: study.found[setting, SIZE, way.name] for way in WAYS}


def _worths(study: Study, setting: str) -> dict[str, Between]:
    ours = study.found[setting, SIZE, OURS.name]
    return {
        way.name.removeprefix("ours without "): ours.worth_beside(study.found[setting, SIZE, way.name])
        for way in WITHOUT
    }


def _worth(study: Study) -> str:
    """Return what each decision is worth."""
    by_setting = {setting: _worths(study, setting) for setting in study.settings}
    names = next(iter(by_setting.values()))
    table = [("without", *(f"{setting}, % of the time" for setting in by_setting))]
    table += [(name, *(percent(found[name], signed=True) for found in by_setting.values())) for name in names]
    return (
        "## Value of each decision\n\n"
        f"The goodput of ours minus that of ours without the decision, at {SIZE:,} nodes, seed by seed. A value within "
        f"its interval is not distinguishable from zero.\n\n{markdown(table)}\n"
    )


def _sizes(study: Study) -> str:
    return "\n".join(f"## By size, {setting}\n\n{markdown(_by_size(study, setting))}\n" for setting in study.settings)


def _by_size(study: Study, setting: str) -> list[tuple[str, ...]]:
    def row(nodes: int) -> tuple[str, ...]:
        return f"{nodes:,}", *(percent(study.found[setting, nodes, way.name].goodput) for way in WAYS)

    return [("nodes", *(way.name for way in WAYS)), *map(row, SIZES)]


def _changed(study: Study) -> str:
    return _prose("changed").format(minutes=study.minutes_between_failures)


def _calibrated(study: Study) -> str:
    rows_of = [(f"{100 * share:.0f} %", percent(one)) for share, one in study.calibrated.items()]
    without = 100 * calibration.deadlocked()
    fits = (f"{100 * study.calibrated[share].middle - without:.1f} %" for share in calibration.FIT)
    return _prose("calibrated").format(
        seconds=calibration.SECONDS_PER_ITERATION,
        deadlocked=without,
        fits=", ".join(fits),
        size=SIZE,
        by_hangs=markdown(_by_hangs(study)),
        first=calibration.FIRST[0],
        last=calibration.LAST[0],
        printed=100 * calibration.printed_uptime(),
        table=markdown([("failures that hang", "uptime, %"), *rows_of]),
    )


def _by_hangs(study: Study) -> list[tuple[str, ...]]:
    def row(share: float, found: Mapping[str, Summary]) -> tuple[str, ...]:
        return f"{100 * share:.0f} %", *(percent(found[way.name].goodput) for way in WAYS)

    head = ("failures that hang", *(way.name for way in WAYS))
    return [head, *(row(share, found) for share, found in study.by_hangs.items())]


def _prose(name: str) -> str:
    return (Path(__file__).resolve().parent / f"{name}.md").read_text()
