"""What a check is: a name, a pure function of a snapshot and the run's settings, and what of a snapshot it looks at."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.config.schema import ExpectTable, WatchTable
from opsctl.run.logs.pulse import words_of
from opsctl.run.logs.records import Saying
from trainer.recipe.save_schedule import SaveSchedule


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
    saves: SaveSchedule | None = None  # after which iterations there is a checkpoint
    evaluates_every: int | None = None  # iterations between evaluations; 0: there are none
    log_interval: int | None = None  # iterations to a line of the training log
    global_batch_size: int | None = None  # samples of an iteration, after the ramp
    array: str = ""  # the tasks of a chain, as sbatch takes them; empty: not known


_NOTHING = Part(0)


@dataclass(frozen=True)
class Detector:
    """One check."""

    name: str  # what its findings' `check` says
    find: Callable[[Snapshot, Settings], list[Finding]]  # empty when there is nothing to say
    needs: Part  # all that `find` and `blind` look at
    help: str = ""  # of its command `opsctl watch NAME`; without one it has no command
    can_do_without: Part = _NOTHING  # of `needs`: without these it still tells what it sees, and says what it does not
    blind: Callable[[Snapshot], str] | None = None  # why else it can say nothing at all; empty when it can
    is_of_desk: bool = False  # it looks at what all runs share, and finds the same in each of them

    def why_blind(self, snapshot: Snapshot) -> str:
        """Why it can say nothing at all, good or bad; empty when it can."""
        needed = self.needs & ~self.can_do_without
        if snapshot.blind is not None and Part.QUEUE in needed:
            return snapshot.blind
        if Part.QUEUE in needed and not snapshot.was_submitted:
            return ""  # of a run that was never submitted there is nothing in Slurm to be seen
        return snapshot.problem_of(needed) or (self.blind(snapshot) if self.blind else "")


def needs_of(detectors: Iterable[Detector]) -> Part:
    """All that they look at together."""
    return functools.reduce(Part.__or__, (detector.needs for detector in detectors), _NOTHING)


def run_detectors(detectors: Iterable[Detector], snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """What they find, in their order. Of one that is blind: one UNKNOWN finding that says why."""
    return [finding for detector in detectors for finding in _found(detector, snapshot, settings)]


def _found(detector: Detector, snapshot: Snapshot, settings: Settings) -> list[Finding]:
    why = detector.why_blind(snapshot)
    if not why:
        return detector.find(snapshot, settings)
    # The watchdog's own words: checks that are blind for one reason say one thing.
    words = words_of(Saying(name=settings.name, state="blind", detail=why))
    return [Finding(detector.name, Severity.UNKNOWN, words)]


def can_tell(key: str, findings: Iterable[Finding], checks: Collection[str]) -> bool:
    """Whether a look at `checks`, which found `findings`, says that what had this key is over when it is not found.

    It does not when the check was not among them, or could not see: an UNKNOWN finding speaks for its own key, and for
    all keys that begin with it: of the whole check, or of one subject (`filesystem:/scratch` for
    `filesystem:/scratch bytes`).
    """
    check = key.partition(":")[0]
    if check not in checks:
        return False
    unknown = {one.key for one in findings if one.severity is Severity.UNKNOWN}
    return not (check in unknown or any(key == one or key.startswith(f"{one} ") for one in unknown))
