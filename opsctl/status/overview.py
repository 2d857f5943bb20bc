"""Everything that `status` shows of a run, as one value, and what follows from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from opsctl.attempts.events import Attempt
from opsctl.checkpoints.inventory import Checkpoint
from opsctl.logs.records import Measured
from opsctl.slurm.states import State
from opsctl.slurm.types import Job
from opsctl.watch.detectors.training import Settings, Snapshot, queue_order, training_findings
from opsctl.watch.finding import Finding, Severity

#: A running training that has logged nothing for so many iterations, and so long, is worth a look.
SILENT_ITERATIONS = 10
SILENT_LEAST = timedelta(minutes=10)


@dataclass(frozen=True)
class KillSwitch:
    """The run's kill switch as `status` shows it."""

    path: Path
    is_armed: bool
    is_triggered: bool
    story: str = ""  # who, when, why


@dataclass(frozen=True)
class Published:
    """The newest revision, and how the run file differs from it."""

    name: str
    at: datetime
    by: str
    differs: tuple[str, ...] = ()  # keys, as table.key
    problem: str = ""  # why the run file could not be compared


@dataclass(frozen=True)
class Overview:
    """A run at one moment. Times have a zone."""

    name: str
    team: str
    output: Path
    now: datetime
    jobs: tuple[Job, ...] = ()  # the run's own; says nothing when `blind`
    blind: str | None = None  # why Slurm could not be asked
    was_submitted: bool = False
    is_finished: bool = False
    published: Published | None = None
    measured: Measured = field(default_factory=Measured)
    log_written_at: datetime | None = None  # the log's last change, None without a log
    total_samples: int | None = None
    total_iterations: int | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_at: datetime | None = None
    attempts: tuple[Attempt, ...] = ()  # all, oldest first
    attempts_without_progress: int = 0  # the last ones, in a row
    brake_at: int = 3  # so many of them stop the chain
    kill_switch: KillSwitch | None = None

    @property
    def running(self) -> Job | None:
        """The task that has its nodes."""
        jobs = [job for job in sorted(self.jobs, key=queue_order) if job.is_running]
        # One that is completing may stand beside its successor.
        return next((job for job in jobs if job.state != State.COMPLETING), jobs[0] if jobs else None)

    @property
    def behind(self) -> tuple[Job, ...]:
        """The others, in the order in which they may come."""
        running = self.running
        return tuple(job for job in sorted(self.jobs, key=queue_order) if job is not running)

    @property
    def state(self) -> str:
        """unknown, finished, absent, unsubmitted, waiting, held, or Slurm's state of the running task in lower case."""
        if self.blind is not None:
            return "finished" if self.is_finished else "unknown"
        if self.running is not None:
            return self.running.state.lower()
        if self.is_finished:
            return "finished"
        if not self.jobs:
            return "absent" if self.was_submitted else "unsubmitted"
        others = [job for job in self.jobs if not job.is_pending and not job.is_held]
        if others:
            return others[0].state.lower()
        return "held" if all(job.is_held or job.cannot_start for job in self.jobs) else "waiting"

    @property
    def iteration(self) -> int | None:
        """The last one known to be done."""
        last = self.measured.last_iteration
        if last is not None:
            return last.iteration
        return self.checkpoint.iteration if self.checkpoint else None

    @property
    def samples(self) -> int | None:
        """Consumed so far."""
        last = self.measured.last_iteration
        if last is not None and last.consumed_samples is not None:
            return last.consumed_samples
        return self.checkpoint.consumed_train_samples if self.checkpoint else None

    @property
    def iterations_in_all(self) -> int | None:
        """As the trainer counts them, else as the revision asks."""
        last = self.measured.last_iteration
        return last.total_iterations if last is not None else self.total_iterations

    @property
    def share(self) -> float | None:
        """How much of the training is done, 0 to 1: by samples where the training is counted in them."""
        done, total = (
            (self.samples, self.total_samples) if self.total_samples else (self.iteration, self.iterations_in_all)
        )
        return min(1.0, done / total) if done is not None and total else None

    @property
    def left_s(self) -> float | None:
        """Seconds of training left at the present speed."""
        measured = self.measured
        if self.is_finished:
            return 0.0
        if self.total_samples and self.samples is not None and measured.samples_per_second:
            return max(0, self.total_samples - self.samples) / measured.samples_per_second
        if self.iterations_in_all and self.iteration is not None and measured.seconds_per_iteration:
            return max(0, self.iterations_in_all - self.iteration) * measured.seconds_per_iteration
        return None

    @property
    def finishes_at(self) -> datetime | None:
        """When it will be done if it goes on as now; None while it does not train."""
        if self.left_s is None or self.state != "running":
            return None
        return self.now + timedelta(seconds=self.left_s)

    @property
    def last_logged_at(self) -> datetime | None:
        """When the last iteration was logged, at the latest."""
        if self.measured.last_iteration is None:
            return None
        return self.measured.stamped_after_it or self.log_written_at

    @property
    def is_loss_age_a_minimum(self) -> bool:
        """Whether other lines came after the last iteration, so that it may be older than `last_logged_at` says."""
        return self.measured.stamped_after_it is not None


def findings(overview: Overview) -> list[Finding]:
    """What somebody should know or do, worst first; empty when all is well. Being blind is a state, not a finding."""
    snapshot = Snapshot(overview.now, overview.jobs, "at its end" if overview.is_finished else None, overview.blind)
    found: list[Finding] = []
    if overview.was_submitted and overview.blind is None:
        found = [
            one
            for one in training_findings(snapshot, Settings(overview.name, overview.team))
            if one.severity is not Severity.OK
        ]
    for detector in (_silence, _brake, _kill_switch, _unpublished):
        text = detector(overview)
        if text:
            found.append(Finding(detector.__name__.strip("_"), Severity.WARNING, text))
    return sorted(found, key=lambda one: -one.severity)


def _silence(overview: Overview) -> str:
    job, typical_s = overview.running, overview.measured.seconds_per_iteration
    logged_at = overview.last_logged_at
    if job is None or job.state != State.RUNNING or not typical_s or logged_at is None:
        return ""
    since = logged_at if job.started_at is None else max(logged_at, job.started_at)
    silent = overview.now - since
    if silent < max(SILENT_LEAST, timedelta(seconds=SILENT_ITERATIONS * typical_s)):
        return ""
    times = silent.total_seconds() / typical_s
    return f"no iteration logged for {_words(silent)}, {times:.0f} times what one takes: opsctl logs"


def _brake(overview: Overview) -> str:
    row = overview.attempts_without_progress
    if row < 2 or overview.is_finished:
        return ""
    what = "the chain stops" if row >= overview.brake_at else f"at {overview.brake_at} the chain stops"
    return f"{row} attempts in a row without a new checkpoint, {what}: opsctl attempts"


def _kill_switch(overview: Overview) -> str:
    switch = overview.kill_switch
    if switch is None or not switch.is_triggered:
        return ""
    return f"the kill switch is triggered {switch.story}: tasks save and leave until opsctl kill-switch deactivate"


def _unpublished(overview: Overview) -> str:
    published = overview.published
    if published is not None and published.problem:
        return f"the run file is edited and cannot be published: {published.problem}"
    return "the run file is edited, not published: opsctl revise" if published and published.differs else ""


def _words(length: timedelta) -> str:
    minutes = int(length.total_seconds() // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
