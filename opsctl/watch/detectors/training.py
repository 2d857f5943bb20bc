"""Is the training in the system? A pure function from what Slurm and the checkpoints say to findings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from opsctl.slurm.types import Job
from opsctl.watch.finding import Finding, Severity
from opsctl.watch.pulse import job_words

CHECK = "training"


@dataclass(frozen=True)
class Settings:
    """What the run file says that this check needs."""

    name: str  # of the run
    team: str  # whom an alert names


@dataclass(frozen=True)
class Snapshot:
    """What was seen, at one moment."""

    now: datetime  # with zone
    jobs: tuple[Job, ...] = ()  # the run's own, in any order
    finished: str | None = None  # how far it came, when the training is finished
    blind: str | None = None  # why Slurm could not be asked; `jobs` says nothing then


def training_findings(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A finding per job of the run, or one that says why there is none.

    What is held behind a training that runs or can start is a warning; with nothing else in the queue it is critical.
    Of a finished training nothing is critical any more.
    """
    if snapshot.blind is not None:
        return [_finding(Severity.UNKNOWN, f"{settings.name} cannot be seen: {snapshot.blind}")]
    jobs = sorted(snapshot.jobs, key=queue_order)
    words = [job_words(settings.name, job, snapshot.now) for job in jobs]
    if snapshot.finished is not None:
        done = _finding(Severity.OK, f"{settings.name} is finished: {snapshot.finished}")
        return [done, *(_finding(Severity.OK, said.text) for said in words)]
    if not jobs:
        return [_alert(Severity.CRITICAL, f"{settings.name} is not RUNNING or SCHEDULED", settings.team)]
    alive = any(said.severity < Severity.CRITICAL for said in words)
    findings = []
    for said in words:
        if said.severity is Severity.CRITICAL:
            findings.append(_alert(Severity.WARNING if alive else Severity.CRITICAL, said.text, settings.team))
        else:
            findings.append(_finding(said.severity, said.text))
    return findings


def queue_order(job: Job) -> tuple[int, int, int]:
    """Sort key: what runs, then what waits, then what is held; older first."""
    rank = 0 if job.is_running else 2 if job.is_held else 1
    return rank, job.array_job_id, job.job_id


def _finding(severity: Severity, text: str) -> Finding:
    return Finding(CHECK, severity, text)


def _alert(severity: Severity, text: str, team: str) -> Finding:
    return Finding(CHECK, severity, text, alert=team)
