"""A job of the training as the words after PULSE. Pure; `opsctl.logs.pulse` reads them back.

The forms that BigScience's watchdog printed keep its words, which other tools grep for; the last parenthesis is closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from opsctl.slurm.durations import format_duration
from opsctl.slurm.states import Reason, State, Wait, wait_of
from opsctl.slurm.types import Job
from opsctl.watch.finding import Severity

#: Slurm state -> (severity, words).
_STATES: dict[str, tuple[Severity, str]] = {
    State.CONFIGURING: (Severity.OK, "is getting its nodes ready since {since}"),
    State.COMPLETING: (Severity.OK, "is completing after {elapsed}"),
    State.SUSPENDED: (Severity.WARNING, "is suspended after {elapsed}"),
    State.STOPPED: (Severity.WARNING, "is stopped after {elapsed}"),
    State.REQUEUED: (Severity.OK, "is being put back into the queue"),
    State.REQUEUE_FED: (Severity.OK, "is being put back into the queue"),
}


@dataclass(frozen=True)
class JobWords:
    """A job in words: `text` for a PULSE line; for an ALERT when `severity` says so."""

    severity: Severity
    text: str


def job_words(name: str, job: Job, now: datetime) -> JobWords:
    """What the watchdog says of one job of the training `name`."""
    where = f"({job.display_id} on '{job.partition}' partition)"
    if job.state == State.RUNNING:
        nodes = f" ({job.nodes})" if job.nodes else ""
        return JobWords(
            Severity.OK,
            f"{name} is running for {format_duration(job.elapsed_s)} since {_clock(job.started_at)}"
            f" ({job.display_id} on '{job.partition}' partition{nodes})",
        )
    if job.is_held:
        reason = job.reason if job.is_pending else job.state
        return JobWords(Severity.CRITICAL, f"{name} is held ({reason}) and starts when it is released {where}")
    if job.is_pending and wait_of(job.reason) is Wait.DEPENDENCY_LOST:
        return JobWords(Severity.CRITICAL, f"{name} waits for a dependency that can never be satisfied {where}")
    if job.cannot_start:
        return JobWords(Severity.CRITICAL, f"{name} cannot start as it was submitted ({job.reason}) {where}")
    if job.is_pending:
        return JobWords(Severity.OK, f"{name} {_waiting(job, now)} {where}")
    severity, words = _STATES.get(job.state, (Severity.OK, f"is in state {job.state}"))
    filled = words.format(since=_clock(job.started_at), elapsed=format_duration(job.elapsed_s))
    return JobWords(severity, f"{name} {filled} {where}")


def _waiting(job: Job, now: datetime) -> str:
    if job.reason == Reason.ARRAY_TASK_LIMIT:
        return "is waiting for the previous Job Array job to finish before scheduling a new one"
    if job.reason == Reason.DEPENDENCY:
        return "is waiting for the previous job to finish before scheduling a new one using the dependency mechanism"
    if job.started_at is None:
        return "is waiting to be scheduled"
    # An expected start that has just passed is due now, not a negative time away.
    left = timedelta(seconds=max(0, int((job.started_at - now).total_seconds())))
    return f"is scheduled to start in {left} (at {_clock(job.started_at)})"


def _clock(moment: datetime | None) -> str:
    """Local time as squeue prints it, N/A when unknown."""
    return moment.astimezone().strftime("%Y-%m-%dT%H:%M:%S") if moment else "N/A"
