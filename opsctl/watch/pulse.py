"""A job of the training as the words after PULSE. Pure; `opsctl.logs.pulse` reads them back.

The forms that BigScience's watchdog printed keep its words, which other tools grep for; the last parenthesis is closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from opsctl.slurm.durations import format_duration
from opsctl.slurm.types import NEVER_SATISFIED, Job
from opsctl.watch.finding import Severity

#: States in which Slurm keeps a job until a person releases it.
_HELD_STATES = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
#: Pending reasons for which a job waits for ever unless somebody changes it or the cluster.
CANNOT_START_REASONS = frozenset(
    {
        "BadConstraints",
        "InvalidAccount",
        "InvalidQOS",
        "AccountNotAllowed",
        "QOSNotAllowed",
        "PartitionConfig",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "ReservationDeleted",
        "DeadLine",
    }
)
#: Slurm state -> (severity, words).
_STATES = {
    "CONFIGURING": (Severity.OK, "is getting its nodes ready since {since}"),
    "COMPLETING": (Severity.OK, "is completing after {elapsed}"),
    "SUSPENDED": (Severity.WARNING, "is suspended after {elapsed}"),
    "STOPPED": (Severity.WARNING, "is stopped after {elapsed}"),
    "REQUEUED": (Severity.OK, "is being put back into the queue"),
    "REQUEUE_FED": (Severity.OK, "is being put back into the queue"),
}


@dataclass(frozen=True)
class JobWords:
    """A job in words: `text` for a PULSE line; for an ALERT when `severity` says so."""

    severity: Severity
    text: str


def is_running(job: Job) -> bool:
    """Whether the job has its nodes."""
    return job.state in {"RUNNING", "CONFIGURING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"}


def is_held(job: Job) -> bool:
    """Whether only a person can let it start. Newer Slurm joins a reason's words with underscores."""
    return job.is_held or job.state in _HELD_STATES or job.reason.replace("_", " ") == "launch failed requeued held"


def cannot_start(job: Job) -> bool:
    """Whether it waits for what never comes."""
    return job.state == "PENDING" and (job.reason == NEVER_SATISFIED or job.reason in CANNOT_START_REASONS)


def job_words(name: str, job: Job, now: datetime) -> JobWords:
    """What the watchdog says of one job of the training `name`."""
    where = f"({job.display_id} on '{job.partition}' partition)"
    if job.state == "RUNNING":
        nodes = f" ({job.nodes})" if job.nodes else ""
        return JobWords(
            Severity.OK,
            f"{name} is running for {format_duration(job.elapsed_s)} since {_clock(job.started_at)}"
            f" ({job.display_id} on '{job.partition}' partition{nodes})",
        )
    if is_held(job):
        reason = job.reason if job.state == "PENDING" else job.state
        return JobWords(Severity.CRITICAL, f"{name} is held ({reason}) and starts when it is released {where}")
    if job.state == "PENDING" and job.reason == NEVER_SATISFIED:
        return JobWords(Severity.CRITICAL, f"{name} waits for a dependency that can never be satisfied {where}")
    if cannot_start(job):
        return JobWords(Severity.CRITICAL, f"{name} cannot start as it was submitted ({job.reason}) {where}")
    if job.state == "PENDING":
        return JobWords(Severity.OK, f"{name} {_waiting(job, now)} {where}")
    severity, words = _STATES.get(job.state, (Severity.OK, f"is in state {job.state}"))
    filled = words.format(since=_clock(job.started_at), elapsed=format_duration(job.elapsed_s))
    return JobWords(severity, f"{name} {filled} {where}")


def _waiting(job: Job, now: datetime) -> str:
    if job.reason == "JobArrayTaskLimit":
        return "is waiting for the previous Job Array job to finish before scheduling a new one"
    if job.reason == "Dependency":
        return "is waiting for the previous job to finish before scheduling a new one using the dependency mechanism"
    if job.started_at is None:
        return "is waiting to be scheduled"
    # An expected start that has just passed is due now, not a negative time away.
    left = timedelta(seconds=max(0, int((job.started_at - now).total_seconds())))
    return f"is scheduled to start in {left} (at {_clock(job.started_at)})"


def _clock(moment: datetime | None) -> str:
    """Local time as squeue prints it, N/A when unknown."""
    return moment.astimezone().strftime("%Y-%m-%dT%H:%M:%S") if moment else "N/A"
