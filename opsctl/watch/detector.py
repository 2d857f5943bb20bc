"""What a check is: a name, a pure function of a snapshot and the run's settings, and what of a snapshot it looks at."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from opsctl.runs.schema import ExpectTable, WatchTable
from opsctl.watch.finding import Finding
from opsctl.watch.snapshot import Part, Snapshot


@dataclass(frozen=True)
class Settings:
    """What the run file says that checks need."""

    name: str  # of the run
    team: str  # whom an alert names
    watch: WatchTable = field(default_factory=WatchTable)
    expect: ExpectTable = field(default_factory=ExpectTable)
    keep_queued: int = 2  # arrays that should wait behind the live one
    nodes: int | None = None  # that the run needs; None, here and below: not known
    time_limit_s: int | None = None  # of each job
    save_interval: int | None = None  # iterations between two checkpoints


@dataclass(frozen=True)
class Detector:
    """One check."""

    name: str  # what its findings' `check` says
    find: Callable[[Snapshot, Settings], list[Finding]]  # empty when there is nothing to say
    needs: Part  # all that `find` looks at
    help: str = ""  # of its command `opsctl watch NAME`; without one it has no command


def needs_of(detectors: Iterable[Detector]) -> Part:
    """All that they look at together."""
    return functools.reduce(Part.__or__, (detector.needs for detector in detectors), Part(0))


def run_detectors(detectors: Iterable[Detector], snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """What they find, in their order."""
    return [finding for detector in detectors for finding in detector.find(snapshot, settings)]
