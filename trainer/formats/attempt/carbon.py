"""Energy records as files: codecarbon's CSV columns, those of its releases from 1 to 3, and what stands beside them.

A file of ours (`emissions-JOB-HOST-ID.csv`) has one row, the total of one tracker so far, replaced whole at each flush:
codecarbon's columns, then those of `Beside`. Its CPU and RAM are the job's share of the node's (`host_share`), so that
files of several jobs on a node may be added. Files of codecarbon's own have a row for each flush, each the total since
the tracker began; releases before 2 know neither `run_id` nor parts.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

#: What codecarbon has set aside because its columns changed, and what it and we write.
FILES = ("*.csv", "*.csv.bak", "*.csv_*.bak")
#: Between words of one cell.
_BETWEEN = " "
_NOTES_BETWEEN = " | "
# Timestamps are whole seconds and a flush takes some, so of one tracker the beginning comes out so far apart.
_SAME_BEGINNING_S = 2.0


@dataclass(frozen=True)
class Beside:
    """What codecarbon's columns do not say of a tracker."""

    host: str
    job: str  # as squeue shows it; empty outside of Slurm
    devices: tuple[str, ...] | None  # the GPUs that are counted; None: all of the node
    host_share: float  # what of the node's CPU and RAM is the job's, already applied
    began_at: datetime  # aware
    is_final: bool  # whether the tracker ended by itself after this
    cpu_method: str = ""  # how codecarbon knows it: intel_rapl, cpu_load, ...
    ram_method: str = ""
    gpu_method: str = ""
    notes: tuple[str, ...] = ()  # what codecarbon warned of


@dataclass(frozen=True)
class Reading:
    """The total of one tracker, in kWh and kg CO2e; times in seconds since 1970, of a clock that may be off."""

    file: str
    run_id: str  # the tracker's own id; empty before codecarbon 2
    began_s: float
    duration_s: float
    cpu_kwh: float
    ram_kwh: float
    gpu_kwh: float
    unsplit_kwh: float  # of releases that do not tell the parts
    emissions_kg: float
    pue: float = 1.0  # by which codecarbon has multiplied all of them
    gpu_count: int | None = None  # GPUs of the node
    release: str = ""  # codecarbon's
    is_process: bool = False  # whether it counted its own process in place of the machine
    beside: Beside | None = None  # None in files of codecarbon's own

    @property
    def ended_s(self) -> float:
        """When it was written, by the clock that said when it began."""
        return self.began_s + self.duration_s

    @property
    def kwh(self) -> float:
        """All of it."""
        return self.cpu_kwh + self.ram_kwh + self.gpu_kwh + self.unsplit_kwh


def file_name(job: str, host: str, run_id: str) -> str:
    """A name that no other attempt, array task or node has."""
    words = (job or "local", host, run_id[:8])
    return "-".join(["emissions", *("".join(c if c.isalnum() or c in "_." else "_" for c in one) for one in words)]) + (
        ".csv"
    )


def file_text(values: Mapping[str, Any], beside: Beside) -> str:
    """The CSV file of a tracker: `values` are codecarbon's columns, CPU and RAM of the whole node."""
    cells = {**_own_share(values, beside.host_share), **_beside_cells(beside)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(cells)
    writer.writerow("" if value is None else value for value in cells.values())
    return text.getvalue()


def _own_share(values: Mapping[str, Any], share: float) -> dict[str, Any]:
    """The same columns with the job's share of CPU and RAM, and what follows from them."""
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
    """The trackers of a file, each with its newest total, and a sentence for each line that cannot be used.

    A line without its end was torn by a crash and is passed over: an earlier total of the same tracker counts then.
    """
    problems: list[str] = []
    totals: list[Reading] = []
    for number, cells in _rows(text, problems, file):
        try:
            reading = _reading(file, cells)
        except (KeyError, ValueError) as error:
            problems.append(f"{file} line {number} is left out: {_said(error)}")
        else:
            totals.append(reading)
    return newest_totals(totals), problems


def newest_totals(readings: Iterable[Reading]) -> list[Reading]:
    """Of each tracker's running totals the one that covers most, wherever its lines were found, in a fixed order.

    A tracker is known by its id; where it has none by its file and by when it began.
    """
    newest: dict[tuple[str, ...], Reading] = {}
    without_id: list[Reading] = []
    for reading in sorted(readings, key=lambda one: (one.file, one.began_s, one.duration_s)):
        if not reading.run_id:
            without_id.append(reading)
            continue
        key = (reading.run_id,)
        first = newest.setdefault(key, reading)
        if reading.duration_s > first.duration_s:
            newest[key] = replace(reading, file=first.file)  # a copied file: its first place says whose neighbour it is
    return [*newest.values(), *_by_beginning(without_id)]


def _by_beginning(readings: list[Reading]) -> Iterator[Reading]:
    """Of readings that stand together by file and beginning, the longest of each tracker; each copied line once."""
    seen: set[tuple[float, ...]] = set()
    longest: Reading | None = None
    for reading in [*readings, None]:
        is_same = (
            reading is not None
            and longest is not None
            and reading.file == longest.file
            and abs(reading.began_s - longest.began_s) <= _SAME_BEGINNING_S
        )
        if longest is not None and not is_same:
            numbers = (longest.began_s, longest.duration_s, longest.kwh, longest.emissions_kg)
            if numbers not in seen:
                yield longest
            seen.add(numbers)
        if reading is not None and (not is_same or longest is None or reading.duration_s > longest.duration_s):
            longest = reading


def _rows(text: str, problems: list[str], file: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and cells by column; a heading in the middle is the one of what follows."""
    whole, end, torn = text.rpartition("\n")
    if torn:
        problems.append(f"{file}: its last line has no end and is left out")
    heading: list[str] = []
    rows = csv.reader((whole + end).replace("\0", "").splitlines())
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            problems.append(f"{file} line {rows.line_num} is left out: {error}")
            continue
        if "timestamp" in cells and "duration" in cells:
            heading = cells
        elif heading and "task_name" in heading:
            continue  # a part of what the tracker's own file has
        elif cells and len(cells) != len(heading):
            problems.append(f"{file} line {rows.line_num} is left out: {len(cells)} cells under {len(heading)} columns")
        elif cells:
            yield rows.line_num, dict(zip(heading, cells, strict=True))


def _reading(file: str, cells: Mapping[str, str]) -> Reading:
    """One row. Raises KeyError for a column that no release lacks, ValueError for what is no number."""
    duration_s, total = _number(cells["duration"]), _number(cells["energy_consumed"])
    parts = [_number(cells.get(f"{part}_energy") or "0") for part in ("cpu", "ram", "gpu")]
    is_split = "cpu_energy" in cells
    beside = _beside(cells) if "host_share" in cells else None
    ended_s = _moment(cells["timestamp"]).timestamp()
    gpus = cells.get("gpu_count") or ""
    return Reading(
        file=file,
        run_id=cells.get("run_id", ""),
        began_s=ended_s - duration_s if beside is None else beside.began_at.timestamp(),
        duration_s=duration_s,
        cpu_kwh=parts[0],
        ram_kwh=parts[1],
        gpu_kwh=parts[2],
        unsplit_kwh=0.0 if is_split else total,
        emissions_kg=_number(cells["emissions"]),
        pue=_number(cells.get("pue") or "1") or 1.0,
        gpu_count=int(_number(gpus)) if gpus else None,
        release=cells.get("codecarbon_version", ""),
        is_process=cells.get("tracking_mode") == "process",
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
        raise ValueError(f"{text} is no amount")
    return number


def _moment(text: str) -> datetime:
    """A time; codecarbon's say no zone, and the machine's that read them need not be that of who wrote them."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _said(error: Exception) -> str:
    return f"no column {error}" if isinstance(error, KeyError) else str(error)
