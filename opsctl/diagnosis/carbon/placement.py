"""Which node, and what of it, each tracker has measured. Pure.

Files of ours say so. Those of codecarbon's own say no host: a tracker per rank, as older programs had it, has the rank
in its file's name, and each has counted the whole node again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from opsctl.core.errors import UsageError
from opsctl.diagnosis.carbon.overlap import WHOLE, Span
from trainer.formats.attempt.carbon import Reading

_RANK = re.compile(r"(\d+)\.csv")


@dataclass(frozen=True)
class Placing:
    """How files that name no host are to be understood."""

    ranks_per_node: int | None = None  # None: as many as the node has GPUs, as the tracker saw them
    has_own_gpu: bool = False  # whether each rank's tracker saw its own GPU alone, in place of all of the node


@dataclass(frozen=True)
class Placed:
    """A tracker, with its node."""

    reading: Reading
    node: str
    spans: tuple[Span, ...]

    @property
    def stretch(self) -> tuple[float, float]:
        """From when to when."""
        return self.reading.began_s, self.reading.ended_s

    @property
    def attempt(self) -> str:
        """What it was a part of: the job, where that is known, else when it began, to the hour."""
        beside = self.reading.beside
        return beside.job if beside is not None and beside.job else f"{self.reading.began_s // 3600:.0f}"


def placed(readings: Sequence[Reading], placing: Placing) -> list[Placed]:
    """Every tracker with its node. Raises UsageError where files do not say how many ranks share a node."""
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
    """Trackers of several ranks at once, of which nobody says which share a node, cannot be added up."""
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
                    "do not say whether on one node: give --ranks-per-node N"
                )
            if reading.ended_s > until:
                until, file = reading.ended_s, reading.file


def _placed(reading: Reading, node: str, placing: Placing) -> Placed:
    beside = reading.beside
    host_key = reading.run_id if reading.is_process else WHOLE
    devices: tuple[str, ...] = (reading.file,) if placing.has_own_gpu and beside is None else (WHOLE,)
    if beside is not None:
        host_key = beside.job or WHOLE
        # A number is a GPU only of its job: another job counts its own from 0 too.
        own = beside.devices or ()
        devices = tuple(f"{beside.job} {name}" if name.isdigit() else name for name in own) or (WHOLE,)
    spans = [*_spans(reading, node, "gpu", devices, reading.gpu_kwh)]
    for part in ("cpu", "ram", "unsplit"):
        spans += _spans(reading, node, part, (host_key,), getattr(reading, f"{part}_kwh"))
    return Placed(reading, node, tuple(spans))


def _spans(reading: Reading, node: str, part: str, keys: tuple[str, ...], kwh: float) -> Iterator[Span]:
    """Even power over the devices; of the machines alone, without what codecarbon has added for their building."""
    if kwh > 0:
        each = kwh / reading.pue / len(keys)
        for key in keys:
            yield Span(node, part, key, reading.began_s, reading.ended_s, each)
