"""The energy records in a folder: which node each tracker measured, and their sum without double counts.

A tracker gives an amount and a period; its power counts as constant within the period. If several trackers measured the
same thing at the same time, their mean counts. So the sum depends neither on the number of ranks with a tracker, nor on
the order of files, nor on the division of a training into attempts. Our records name the host. Those of codecarbon
itself do not: older programs had one per rank, with the rank in the file's name, and each measured the whole node.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from opsctl.core.errors import UsageError, file_problem
from opsctl.core.files.state_files import read_text
from opsctl.core.files.trusted import names_in, opened_folder
from trainer.formats.attempt.carbon import FILES, Reading, newest_totals, read

#: More than any training has: 1,000 nodes times 1,000 attempts.
MOST_FILES = 1_000_000


@dataclass(frozen=True)
class Found:
    """The records found, each tracker once."""

    files: int = 0
    readings: tuple[Reading, ...] = ()
    problems: tuple[str, ...] = ()  # one sentence for each unreadable file


def find(folders: list[Path], most: int = MOST_FILES) -> Found | None:
    """Return the trackers in these folders, each once; None for more than `most` files. Problems hide no others."""
    readings: list[Reading] = []
    problems: list[str] = []
    files = 0
    for folder in folders:
        try:
            with opened_folder(folder, folder) as (fd, _):
                names = [name for name in names_in(fd, folder, MOST_FILES) if _is_record(name)]
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(file_problem(error, folder))
            continue
        files += len(names)
        if files > most:
            return None
        for name in names:
            try:
                text = read_text(folder, folder / name)
            except OSError as error:
                problems.append(file_problem(error, folder / name))
                continue
            there, wrong = read(str(folder / name), text or "")  # a file that was deleted meanwhile has none
            readings += there
            problems += wrong
    return Found(files, tuple(newest_totals(readings)), tuple(problems))


def _is_record(name: str) -> bool:
    return not name.startswith(".") and any(fnmatch.fnmatch(name, pattern) for pattern in FILES)


#: The key of a whole node's measurement; other keys are parts of it that do not overlap.
WHOLE = ""


@dataclass(frozen=True)
class Span:
    """A constant power of one part of a node over a period."""

    node: str
    part: str  # cpu, ram, gpu, unsplit
    key: str  # a job or a device; WHOLE: all of the node
    began_s: float
    ended_s: float
    kwh: float


def counted_once(spans: Iterable[Span]) -> dict[str, float]:
    """Return the kWh of each part over all nodes and times."""
    of_place: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        of_place[span.node, span.part].append(span)
    sums: dict[str, float] = defaultdict(float)
    for (_, part), there in sorted(of_place.items()):
        sums[part] += _of_one_place(there)
    return dict(sums)


def _of_one_place(spans: Sequence[Span]) -> float:
    """Return the kWh of one part of one node. Of periods without length only the largest counts, in addition."""
    moments = [span for span in spans if span.ended_s <= span.began_s]
    lasting = [span for span in spans if span.ended_s > span.began_s]
    edges = sorted({edge for span in lasting for edge in (span.began_s, span.ended_s)})
    begins: dict[float, list[Span]] = defaultdict(list)
    for span in lasting:
        begins[span.began_s].append(span)
    total, active = max((span.kwh for span in moments), default=0.0), list[Span]()
    for began, ended in itertools.pairwise(edges):
        active = [span for span in active if span.ended_s > began] + begins[began]
        total += _kw(active) * (ended - began)
    return total


def _kw(active: Sequence[Span]) -> float:
    """Return the kWh per second: the mean of whole-node trackers, or the sum of the parts if that is more."""
    by_key: dict[str, list[float]] = defaultdict(list)
    for span in active:
        by_key[span.key].append(span.kwh / (span.ended_s - span.began_s))
    means = {key: sum(powers) / len(powers) for key, powers in by_key.items()}
    whole = means.pop(WHOLE, 0.0)
    return max(whole, sum(means[key] for key in sorted(means)))


def covered_s(stretches: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that at least one of the periods covers."""
    total, until = 0.0, float("-inf")
    for began, ended in sorted(stretches):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


_RANK = re.compile(r"(\d+)\.csv")


@dataclass(frozen=True)
class Placing:
    """The meaning of files that name no host."""

    ranks_per_node: int | None = None  # None: as many as the node's GPUs in the record
    has_own_gpu: bool = False  # each rank's tracker measured only its own GPU


@dataclass(frozen=True)
class Placed:
    """A tracker, with its node."""

    reading: Reading
    node: str
    spans: tuple[Span, ...]

    @property
    def stretch(self) -> tuple[float, float]:
        """Return its start and end."""
        return self.reading.began_s, self.reading.ended_s

    @property
    def attempt(self) -> str:
        """Return its job; if unknown, the hour of its start."""
        beside = self.reading.beside
        return beside.job if beside is not None and beside.job else f"{self.reading.began_s // 3600:.0f}"


def placed(readings: Sequence[Reading], placing: Placing) -> list[Placed]:
    """Return every tracker with its node. Raises UsageError if the number of ranks per node is missing."""
    _refuse_unknown_nodes(readings, placing)
    return [_placed(reading, _node(reading, placing), placing) for reading in readings]


def _node(reading: Reading, placing: Placing) -> str:
    if reading.beside is not None:
        return reading.beside.host
    folder, rank, size = PurePath(reading.file).parent, _rank(reading), _ranks_per_node(reading, placing)
    return reading.file if rank is None or not size else f"{folder}/node {rank // size}"


def _rank(reading: Reading) -> int | None:
    match = _RANK.search(PurePath(reading.file).name)
    return int(match[1]) if match else None


def _ranks_per_node(reading: Reading, placing: Placing) -> int | None:
    return placing.ranks_per_node or reading.gpu_count


def _refuse_unknown_nodes(readings: Iterable[Reading], placing: Placing) -> None:
    """Raise UsageError for simultaneous trackers of several ranks if it is unknown which share a node."""
    unknown: dict[PurePath, list[Reading]] = defaultdict(list)
    for reading in readings:
        if reading.beside is None and _rank(reading) is not None and not _ranks_per_node(reading, placing):
            unknown[PurePath(reading.file).parent].append(reading)
    for folder, there in sorted(unknown.items()):
        until, file = float("-inf"), ""
        for reading in sorted(there, key=lambda one: one.began_s):
            if reading.began_s < until and reading.file != file:
                raise UsageError(
                    f"{folder}: {PurePath(file).name} and {PurePath(reading.file).name} measured at the same time, and "
                    "do not show if they ran on one node. Give --ranks-per-node N"
                )
            if reading.ended_s > until:
                until, file = reading.ended_s, reading.file


def _placed(reading: Reading, node: str, placing: Placing) -> Placed:
    beside = reading.beside
    host_key = reading.run_id if reading.is_process else WHOLE
    devices: tuple[str, ...] = (reading.file,) if placing.has_own_gpu and beside is None else (WHOLE,)
    if beside is not None:
        host_key = beside.job or WHOLE
        # A number identifies a GPU only within its job: another job also counts from 0.
        own = beside.devices or ()
        devices = tuple(f"{beside.job} {name}" if name.isdigit() else name for name in own) or (WHOLE,)
    spans = [*_spans(reading, node, "gpu", devices, reading.gpu_kwh)]
    for part in ("cpu", "ram", "unsplit"):
        spans += _spans(reading, node, part, (host_key,), getattr(reading, f"{part}_kwh"))
    return Placed(reading, node, tuple(spans))


def _spans(reading: Reading, node: str, part: str, keys: tuple[str, ...], kwh: float) -> Iterator[Span]:
    """Yield constant power on the devices, without the PUE that codecarbon included."""
    if kwh > 0:
        each = kwh / reading.pue / len(keys)
        for key in keys:
            yield Span(node, part, key, reading.began_s, reading.ended_s, each)
