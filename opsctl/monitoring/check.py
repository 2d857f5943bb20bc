"""A check: a name, a pure function of a snapshot and the run's settings, and the parts of a snapshot that it reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from inspect import cleandoc

from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.config.schema import ExpectTable, WatchTable
from opsctl.run.logs.pulse import words_of
from opsctl.run.logs.records import WatchdogState
from opsctl.slurm.durations import parse_duration_s
from trainer.recipe.save_schedule import SaveSchedule


@dataclass(frozen=True)
class Settings:
    """The values of the run file that checks need."""

    name: str  # of the run
    team: str  # whom an alert names
    watch: WatchTable = field(default_factory=WatchTable)
    expect: ExpectTable = field(default_factory=ExpectTable)
    keep_queued: int = 2  # arrays that should wait behind the live one
    nodes: int | None = None  # that the run needs; None, here and below: not known
    time_limit_s: int | None = None  # of each job
    saves: SaveSchedule | None = None  # after which iterations there is a checkpoint
    evaluates_every: int | None = None  # iterations between evaluations; 0: there are none
    log_interval: int | None = None  # iterations to a line of the training log
    global_batch_size: int | None = None  # samples of an iteration, after the ramp
    array: str = ""  # the tasks of a chain, as sbatch takes them; empty: not known

    def seconds_of(self, key: str) -> float | None:
        """Return a duration of `[watch]` in seconds; None where it is not set."""
        written = getattr(self.watch, key)
        return None if written is None else float(parse_duration_s(written))


_NOTHING = Part(0)


@dataclass(frozen=True)
class Detector:
    """One check."""

    name: str  # what its findings' `check` says
    find: Callable[[Snapshot, Settings], list[Finding]]  # empty when there is nothing to report
    needs: Part  # all that `find` and `blind` read
    help: str = ""  # of its command `opsctl watch NAME`; without one it has no command
    can_do_without: Part = _NOTHING  # of `needs`: without these it still reports what it sees
    blind: Callable[[Snapshot], str] | None = None  # why else it can find nothing at all; empty when it can
    is_shared: bool = False  # it reads what all runs share, and finds the same in each of them

    def why_blind(self, snapshot: Snapshot) -> str:
        """Return why it can find nothing at all, good or bad; empty when it can."""
        needed = self.needs & ~self.can_do_without
        if snapshot.blind is not None and Part.QUEUE in needed:
            return snapshot.blind
        if Part.QUEUE in needed and not snapshot.was_submitted:
            return ""  # of a run that was never submitted there is nothing in Slurm to be seen
        return snapshot.problem_of(needed) or (self.blind(snapshot) if self.blind else "")


def check(
    needs: Part,
    *,
    can_do_without: Part = _NOTHING,
    blind: Callable[[Snapshot], str] | None = None,
    is_shared: bool = False,
) -> Callable[[Callable[[Snapshot, Settings], Iterable[Finding]]], Detector]:
    """Make a function the check of its name; its docstring is the help of `opsctl watch NAME`. See `Detector`."""

    def detector(function: Callable[[Snapshot, Settings], Iterable[Finding]]) -> Detector:
        name = function.__name__

        def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
            return [replace(one, check=name) for one in function(snapshot, settings)]

        return Detector(name, find, needs, cleandoc(function.__doc__ or ""), can_do_without, blind, is_shared)

    return detector


def needs_of(detectors: Iterable[Detector]) -> Part:
    """Return all parts that they read."""
    return functools.reduce(Part.__or__, (detector.needs for detector in detectors), _NOTHING)


def run_detectors(detectors: Iterable[Detector], snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """Return what they find, in their order. A blind one has one UNKNOWN finding with the reason."""
    return [finding for detector in detectors for finding in _found(detector, snapshot, settings)]


def _found(detector: Detector, snapshot: Snapshot, settings: Settings) -> list[Finding]:
    why = detector.why_blind(snapshot)
    if not why:
        return detector.find(snapshot, settings)
    # The watchdog's own words: checks that are blind for one reason report one line.
    words = words_of(WatchdogState(name=settings.name, state="blind", detail=why))
    return [Finding(detector.name, Severity.UNKNOWN, words)]


def summary(detectors: Collection[Detector], found: Collection[Iterable[Finding]]) -> str:
    """Return `33 checks: all healthy`, or how many have findings and how many were not able to look.

    found: what they found, for each run. All checks of a run that could not be read were not able to look.
    """
    names, troubled, blind = {one.name for one in detectors}, 0, 0
    for findings in found:
        unseen = {one.check for one in findings if one.severity is Severity.UNKNOWN}
        seen = {one.check for one in findings if one.severity > Severity.OK} - unseen
        if not seen | unseen <= names:
            unseen, seen = names, set()
        troubled, blind = troubled + len(seen), blind + len(unseen)
    count = len(names) * len(found)
    of_runs = f" of {len(found)} runs" if len(found) > 1 else ""
    healthy = "all" if not troubled and not blind else str(count - troubled - blind)
    words = [f"{healthy} healthy"]
    words += [f"{troubled} with findings"] if troubled else []
    words += [f"{blind} not able to look"] if blind else []
    return f"{count} checks{of_runs}: {', '.join(words)}"


def can_tell(key: str, findings: Iterable[Finding], checks: Collection[str]) -> bool:
    """Return True if a run of `checks`, which found `findings`, shows that the finding `key` is over when it is absent.

    False if its check was not among them, or could not see: an UNKNOWN finding counts for its own key, and for
    all keys that begin with it: of the whole check, or of one subject (`filesystem:/scratch` for
    `filesystem:/scratch bytes`).
    """
    name = key.partition(":")[0]
    if name not in checks:
        return False
    unknown = {one.key for one in findings if one.severity is Severity.UNKNOWN}
    return not (name in unknown or any(key == one or key.startswith(f"{one} ") for one in unknown))
