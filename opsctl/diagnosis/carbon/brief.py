"""The energy of a run for `opsctl status`, which reads at most a few hundred small files."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, structs

from opsctl.core.files.state_files import read_state, write_state
from opsctl.core.timestamps import iso, now
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import CarbonTable
from trainer.formats.json_text import Moment

if TYPE_CHECKING:
    from opsctl.diagnosis.carbon.report import CarbonReport

#: Files that a check reads at most: about 30 ms on a local disk. Beyond that it shows the last report's result.
MOST_FILES = 200


class EnergySeen(Struct, frozen=True, kw_only=True):
    """The measured energy of the run so far."""

    kwh: Annotated[float | None, Meta(description="Electricity in kWh; null with too many records to read.")] = None
    kg: Annotated[float | None, Meta(description="CO2e in kg by the trackers' values; null if unknown.")] = None
    node_hours: Annotated[float | None, Meta(description="Node hours in which a tracker ran.")] = None
    told: Annotated[str, Meta(description="The same in words, or why it is missing.")] = ""
    at: Annotated[Moment | None, Meta(description="Time of the report with these values; null if current.")] = None


def energy_seen(paths: RunPaths, carbon: CarbonTable | None = None) -> EnergySeen | None:
    """Return the trackers' sum with the PUE of `[carbon]`; None without trackers."""
    if not os.path.lexists(paths.codecarbon):  # do not import the modules that read records
        return None
    from opsctl.diagnosis.carbon.report import Inputs, report_of
    from opsctl.diagnosis.carbon.trackers import find

    found = find(paths.codecarbon, MOST_FILES)
    if found is None:
        many = f"more than {MOST_FILES} records. To add them up: opsctl carbon report"
        return read_state(paths.output, paths.carbon_seen, EnergySeen) or EnergySeen(told=many)
    if not found.readings:
        return None
    return seen_in(report_of(found, Inputs(pue=(carbon or CarbonTable()).pue)))


def seen_in(report: CarbonReport) -> EnergySeen:
    """Return the summary of a report."""
    from opsctl.diagnosis.carbon.report import short_line

    return EnergySeen(kwh=report.kwh, kg=report.kg, node_hours=report.measured_node_hours, told=short_line(report))


def remember(paths: RunPaths, report: CarbonReport) -> None:
    """Store a report for checks of runs with too many records, if the state is writable."""
    from opsctl.diagnosis.carbon.report import short_line

    moment = now()
    seen = structs.replace(seen_in(report), at=moment, told=f"{short_line(report)}, as of {iso(moment, 'minutes')}")
    with contextlib.suppress(OSError):
        write_state(paths.output, paths.carbon_seen, seen)
