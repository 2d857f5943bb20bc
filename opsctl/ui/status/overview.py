"""What follows from a snapshot of a run for those who look at it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from opsctl.monitoring import registry
from opsctl.monitoring.check import Detector, Settings, run_detectors
from opsctl.monitoring.checks.speed import Standstill, standstill
from opsctl.monitoring.checks.training import training
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.logs.measurements import training_left_s


@dataclass(frozen=True)
class Overview:
    """A run as `status` shows it."""

    name: str
    team: str
    output: Path
    seen: Snapshot
    settings: Settings | None = None  # of its run file; None: not known

    @property
    def state(self) -> str:
        """unknown, finished, absent, unsubmitted, waiting, held, or Slurm's state of the running task in lower case."""
        seen = self.seen
        if seen.blind is not None:
            return "finished" if seen.is_finished else "unknown"
        if seen.running is not None:
            return seen.running.state.lower()
        if seen.is_finished:
            return "finished"
        if not seen.jobs and (seen.unseen or seen.writer_elsewhere is not None):
            return "unknown"
        if not seen.jobs:
            return "absent" if seen.was_submitted else "unsubmitted"
        others = [job for job in seen.jobs if not job.is_pending and not job.is_held]
        if others:
            return others[0].state.lower()
        return "held" if all(job.is_held or job.cannot_start for job in seen.jobs) else "waiting"

    @property
    def iteration(self) -> int | None:
        """The last one known to be done, of the training as it goes on."""
        last, checkpoint = self.seen.standing.last_iteration, self.seen.checkpoint
        if last is not None:
            return last.iteration
        return checkpoint.iteration if checkpoint else None

    @property
    def samples(self) -> int | None:
        """Consumed so far."""
        last, checkpoint = self.seen.standing.last_iteration, self.seen.checkpoint
        if last is not None and last.consumed_samples is not None:
            return last.consumed_samples
        return checkpoint.consumed_train_samples if checkpoint else None

    @property
    def iterations_in_all(self) -> int | None:
        """As the trainer counts them, else as the revision asks."""
        last = self.seen.measured.last_iteration
        return last.total_iterations if last is not None else self.seen.total_iterations

    @property
    def share(self) -> float | None:
        """How much of the training is done, 0 to 1: by samples where the training is counted in them."""
        total_samples = self.seen.total_samples
        done, total = (self.samples, total_samples) if total_samples else (self.iteration, self.iterations_in_all)
        return min(1.0, done / total) if done is not None and total else None

    @property
    def standstill(self) -> Standstill | None:
        """Since when it stands still, by the rule of the check `silence`."""
        return standstill(self.seen, self.settings or Settings(self.name, self.team))

    @property
    def left_s(self) -> float | None:
        """Seconds of training left at the present speed; None while it stands still."""
        if self.seen.is_finished:
            return 0.0
        if self.standstill is not None:
            return None
        saved = self.seen.checkpoint
        return training_left_s(
            self.seen.standing,
            self.seen.total_samples,
            self.seen.total_iterations,
            saved.consumed_train_samples if saved else None,
            saved.iteration if saved else None,
        )

    @property
    def finishes_at(self) -> datetime | None:
        """When it will be done if it goes on as now; None while it does not train."""
        if self.left_s is None or self.state != "running":
            return None
        return self.seen.now + timedelta(seconds=self.left_s)


#: What a look at one run gathers. The rest costs too much for every look.
LOOKED_AT = Part.ALL | Part.SERIES | Part.CRON | Part.CHANNELS | Part.CURVE


def checks_of(parts: Part = LOOKED_AT) -> list[Detector]:
    """The checks that need no more than `parts`."""
    return [check for check in registry.DETECTORS if check.needs in parts]


def findings(
    overview: Overview, settings: Settings | None = None, checks: Sequence[Detector] | None = None
) -> list[Finding]:
    """What somebody should know or do, worst first; empty when all is well. Being blind is a state, not a finding.

    Nobody misses a training that was never submitted. settings: None, nothing is known but the run's name.
    """
    settings = settings or Settings(overview.name, overview.team)
    found = run_detectors(checks_of() if checks is None else checks, overview.seen, settings)
    shown = [
        one
        for one in found
        if one.severity in (Severity.WARNING, Severity.CRITICAL)
        and (overview.seen.was_submitted or one.check != training.name)
    ]
    return sorted(shown, key=lambda one: -one.severity.weight)
