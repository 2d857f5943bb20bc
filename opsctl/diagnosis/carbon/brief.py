"""What a look at a run tells of its energy, at the cost of reading a few hundred small files at most."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, structs

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import read_state, write_state
from opsctl.core.timestamps import iso, now
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import CarbonTable
from trainer.formats.json_text import Moment

if TYPE_CHECKING:
    from opsctl.diagnosis.carbon.report import CarbonReport

#: A look reads no more than this: some 30 ms of a disk that is near. Of more it tells what the last report found.
MOST_FILES = 200


class EnergySeen(Struct, frozen=True, kw_only=True):
    """What the run's trackers have seen so far."""

    kwh: Annotated[float | None, Meta(description="Electricity in kWh; null for too many records for a look.")] = None
    kg: Annotated[float | None, Meta(description="CO2e in kg, as the trackers had it; null where not known.")] = None
    node_hours: Annotated[float | None, Meta(description="Node hours in which a tracker ran.")] = None
    told: Annotated[str, Meta(description="The same in words, or why it is not told.")] = ""
    at: Annotated[Moment | None, Meta(description="When a report found it; null for what is so now.")] = None


class TooMany(Exception):
    """More records than a look reads."""

    def __init__(self) -> None:
        super().__init__(f"more than {MOST_FILES} records: opsctl carbon report adds them up")


def energy_seen(paths: RunPaths, carbon: CarbonTable | None = None) -> EnergySeen | None:
    """The trackers' sum, with the PUE of `[carbon]`; None where there are none."""
    table = carbon or CarbonTable()
    try:
        return energy_in(paths.codecarbon, table)
    except TooMany as many:
        return read_state(paths.output, paths.carbon_seen, EnergySeen) or EnergySeen(told=str(many))


def energy_in(folder: Path, table: CarbonTable) -> EnergySeen | None:
    """The sum of the trackers' records in a folder; None where there are none. Raises TooMany."""
    if not os.path.lexists(folder):  # what reads and adds up records is not even imported
        return None
    from opsctl.diagnosis.carbon.report import Asked, report_of
    from opsctl.diagnosis.carbon.trackers import find

    found = find([folder], MOST_FILES)
    if found is None:
        raise TooMany
    if not found.readings:
        return None
    try:
        return seen_in(report_of(found, Asked(pue=table.pue)))
    except OpsctlError as error:
        return EnergySeen(told=str(error))


def seen_in(report: CarbonReport) -> EnergySeen:
    """What a look tells of a report."""
    from opsctl.diagnosis.carbon.report import short_line

    return EnergySeen(kwh=report.kwh, kg=report.kg, node_hours=report.measured_node_hours, told=short_line(report))


def remember(paths: RunPaths, report: CarbonReport) -> None:
    """Keep a report of the run's trackers for looks at more records than they read; no matter where that cannot be."""
    from opsctl.diagnosis.carbon.report import short_line

    moment = now()
    seen = structs.replace(seen_in(report), at=moment, told=f"{short_line(report)}, as of {iso(moment, 'minutes')}")
    with contextlib.suppress(OSError):
        write_state(paths.output, paths.carbon_seen, seen)
