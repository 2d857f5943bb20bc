"""Energy records as files: codecarbon's CSV columns, and our own next to them.

Our files (`emissions-JOB-HOST-ID.csv`) have one row: the total of one tracker so far, replaced as a whole at each
flush. It has codecarbon's columns, then those of `Beside`. Its CPU and RAM are the job's share of the node's
(`host_share`), so the files of several jobs on a node can be added. Files of codecarbon itself name no host: which of
them measured the same node is unknown, so they are not read.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

#: Separator between words of one cell.
_BETWEEN = " "
_NOTES_BETWEEN = " | "


@dataclass(frozen=True)
class Beside:
    """Facts about a tracker that codecarbon's columns do not have."""

    host: str
    job: str  # as squeue shows it; empty outside of Slurm
    devices: tuple[str, ...] | None  # the GPUs that are counted; None: all of the node
    host_share: float  # the job's share of the node's CPU and RAM, already applied
    began_at: datetime  # aware
    is_final: bool  # the tracker ended normally after this row
    cpu_method: str = ""  # codecarbon's method: intel_rapl, cpu_load, ...
    ram_method: str = ""
    gpu_method: str = ""
    notes: tuple[str, ...] = ()  # codecarbon's warnings


@dataclass(frozen=True)
class Reading:
    """The total of one tracker, in kWh and kg CO2e. Times are seconds since 1970 of a clock that may be wrong."""

    file: str
    run_id: str  # the tracker's own id
    began_s: float
    duration_s: float
    cpu_kwh: float
    ram_kwh: float
    gpu_kwh: float
    emissions_kg: float
    beside: Beside

    @property
    def ended_s(self) -> float:
        """The time when it was written, by the same clock as its start."""
        return self.began_s + self.duration_s

    @property
    def kwh(self) -> float:
        """The energy of all parts."""
        return self.cpu_kwh + self.ram_kwh + self.gpu_kwh


def file_name(job: str, host: str, run_id: str) -> str:
    """Return a file name that is unique to the attempt, the array task and the node."""
    words = (job or "local", host, run_id[:8])
    return "-".join(["emissions", *("".join(c if c.isalnum() or c in "_." else "_" for c in one) for one in words)]) + (
        ".csv"
    )


def file_text(values: Mapping[str, Any], beside: Beside) -> str:
    """Return the CSV file of a tracker. `values` are codecarbon's columns, with CPU and RAM of the whole node."""
    cells = {**_own_share(values, beside.host_share), **_beside_cells(beside)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(cells)
    writer.writerow("" if value is None else value for value in cells.values())
    return text.getvalue()


def _own_share(values: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Return the columns with the job's share of CPU and RAM, and the values derived from them."""
    own = dict(values)
    for part in ("cpu", "ram"):
        own[f"{part}_power"], own[f"{part}_energy"] = (values[f"{part}_{what}"] * share for what in ("power", "energy"))
    whole = values["energy_consumed"]
    own["energy_consumed"] = own["cpu_energy"] + own["ram_energy"] + values["gpu_energy"]
    of_whole = own["energy_consumed"] / whole if whole else 0.0
    for key in ("emissions", "emissions_rate", "water_consumed"):
        if key in own:
            own[key] = values[key] * of_whole
    return own


def _beside_cells(beside: Beside) -> dict[str, Any]:
    return {
        "host": beside.host,
        "job": beside.job,
        "devices": "all" if beside.devices is None else _BETWEEN.join(beside.devices),
        "host_share": beside.host_share,
        "began_at": beside.began_at.isoformat(timespec="milliseconds"),
        "is_final": "Y" if beside.is_final else "N",
        "cpu_method": beside.cpu_method,
        "ram_method": beside.ram_method,
        "gpu_method": beside.gpu_method,
        "notes": _NOTES_BETWEEN.join(beside.notes),
    }


def read(file: str, text: str) -> tuple[list[Reading], list[str]]:
    """Return the trackers of a file, each with its newest total, and a sentence for each unusable line.

    A line without a newline was truncated by a crash and is skipped: an earlier total of the same tracker counts.
    """
    problems: list[str] = []
    totals: list[Reading] = []
    for number, cells in _rows(text, problems, file):
        try:
            reading = _reading(file, cells)
        except (KeyError, ValueError) as error:
            problems.append(f"{file} line {number} is skipped: {_error_text(error)}")
        else:
            totals.append(reading)
    return newest_totals(totals), problems


def newest_totals(readings: Iterable[Reading]) -> list[Reading]:
    """Return the most complete running total of each tracker, in a fixed order, wherever its lines were found."""
    newest: dict[str, Reading] = {}
    for reading in sorted(readings, key=lambda one: (one.file, one.began_s, one.duration_s)):
        first = newest.setdefault(reading.run_id, reading)
        if reading.duration_s > first.duration_s:
            newest[reading.run_id] = replace(reading, file=first.file)  # a copied file: its first place decides
    return list(newest.values())


def _rows(text: str, problems: list[str], file: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line numbers and cells by column. A heading in the middle applies to the lines after it."""
    whole, end, torn = text.rpartition("\n")
    if torn:
        problems.append(f"{file}: its last line has no newline and is skipped")
    heading: list[str] = []
    rows = csv.reader((whole + end).replace("\0", "").splitlines())
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            problems.append(f"{file} line {rows.line_num} is skipped: {error}")
            continue
        if "timestamp" in cells and "duration" in cells:
            heading = cells
            if "host_share" not in heading:
                problems.append(f"{file} is skipped: codecarbon's own file, which names no host")
        elif heading and "host_share" not in heading:
            continue
        elif cells and len(cells) != len(heading):
            problems.append(f"{file} line {rows.line_num} is skipped: {len(cells)} cells under {len(heading)} columns")
        elif cells:
            yield rows.line_num, dict(zip(heading, cells, strict=True))


def _reading(file: str, cells: Mapping[str, str]) -> Reading:
    """Return one row. Raises KeyError for a column that is missing, ValueError for an invalid number."""
    parts = [_number(cells.get(f"{part}_energy") or "0") for part in ("cpu", "ram", "gpu")]
    beside = _beside(cells)
    return Reading(
        file=file,
        run_id=cells["run_id"],
        began_s=beside.began_at.timestamp(),
        duration_s=_number(cells["duration"]),
        cpu_kwh=parts[0],
        ram_kwh=parts[1],
        gpu_kwh=parts[2],
        emissions_kg=_number(cells["emissions"]),
        beside=beside,
    )


def _beside(cells: Mapping[str, str]) -> Beside:
    devices = cells["devices"]
    return Beside(
        host=cells["host"],
        job=cells["job"],
        devices=None if devices == "all" else tuple(devices.split()),
        host_share=_number(cells["host_share"]),
        began_at=_moment(cells["began_at"]),
        is_final=cells["is_final"] == "Y",
        cpu_method=cells["cpu_method"],
        ram_method=cells["ram_method"],
        gpu_method=cells["gpu_method"],
        notes=tuple(filter(None, cells["notes"].split(_NOTES_BETWEEN))),
    )


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{text} is not an amount")
    return number


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _error_text(error: Exception) -> str:
    return f"no column {error}" if isinstance(error, KeyError) else str(error)
