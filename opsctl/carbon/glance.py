"""What a look at a run tells of its energy, at the cost of reading a few hundred small files at most."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from opsctl.carbon.found import find
from opsctl.carbon.report import Asked, report_of
from opsctl.carbon.screen import short_line
from opsctl.errors import OpsctlError
from opsctl.runs.paths import RunPaths
from opsctl.runs.schema import CarbonTable

#: A look reads no more than this: some 20 ms of a disk that is near. The report reads all.
MOST_FILES = 500


class EnergySeen(Struct, frozen=True, kw_only=True):
    """What the run's trackers have seen so far."""

    kwh: Annotated[float | None, Meta(description="Electricity in kWh; null for too many records for a look.")] = None
    kg: Annotated[
        float | None, Meta(description="CO2e in kg, as the trackers had it; null where that is not known.")
    ] = None
    node_hours: Annotated[float | None, Meta(description="Node hours in which a tracker ran.")] = None
    told: Annotated[str, Meta(description="The same in words, or why it is not told.")] = ""


def energy_seen(paths: RunPaths, carbon: CarbonTable | None = None) -> EnergySeen | None:
    """The trackers' sum, with the PUE of `[carbon]`; None where there are none."""
    table = carbon or CarbonTable()
    found = find([paths.codecarbon], MOST_FILES)
    if found is None:
        return EnergySeen(told=f"more than {MOST_FILES} records: opsctl carbon report adds them up")
    if not found.readings:
        return None
    try:
        report = report_of(found, Asked(pue=table.pue))
    except OpsctlError as error:
        return EnergySeen(told=str(error))
    return EnergySeen(kwh=report.kwh, kg=report.kg, node_hours=report.measured_node_hours, told=short_line(report))
