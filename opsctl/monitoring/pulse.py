"""Which of the watchdog's words a job of the training gets, and how bad that is. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from opsctl.monitoring.finding import Severity
from opsctl.run.logs.pulse import words_of
from opsctl.run.logs.records import Saying
from opsctl.slurm.durations import format_duration
from opsctl.slurm.states import Reason, State, Wait, wait_of
from opsctl.slurm.types import Job

#: Slurm state -> (severity, form), of what neither waits nor is held.
_STATES: dict[str, tuple[Severity, str]] = {
    State.RUNNING: (Severity.OK, "running"),
    State.CONFIGURING: (Severity.OK, "configuring"),
    State.COMPLETING: (Severity.OK, "completing"),
    State.SUSPENDED: (Severity.WARNING, "suspended"),
    State.STOPPED: (Severity.WARNING, "stopped"),
    State.REQUEUED: (Severity.OK, "requeued"),
    State.REQUEUE_FED: (Severity.OK, "requeued"),
}
#: Reasons to wait that have words of their own.
_WAITING: dict[str, str] = {Reason.ARRAY_TASK_LIMIT: "array-limit", Reason.DEPENDENCY: "dependency"}


@dataclass(frozen=True)
class JobWords:
    """A job in words: `text` for a PULSE line; for an ALERT when `severity` says so."""

    severity: Severity
    text: str
    form: str  # one of opsctl.run.logs.pulse.FORMS
    job: Job


def job_words(name: str, job: Job, now: datetime) -> JobWords:
    """What the watchdog says of one job of the training `name`."""
    severity, form = _form(job)
    saying = Saying(
        name=name,
        state=form,
        job_id=job.display_id,
        partition=job.partition,
        nodes=job.nodes if form == "running" else "",
        elapsed=_until(job.started_at, now) if form == "scheduled" else format_duration(job.elapsed_at_s(now)),
        starts_at=_clock(job.started_at),
        reason=job.reason if job.is_pending else job.state,
    )
    return JobWords(severity, words_of(saying), form, job)


def _form(job: Job) -> tuple[Severity, str]:
    if job.is_held:
        return Severity.CRITICAL, "held"
    if job.cannot_start:
        lost = wait_of(job.reason) is Wait.DEPENDENCY_LOST
        return Severity.CRITICAL, "never" if lost else "cannot-start"
    if job.is_pending:
        return Severity.OK, _WAITING.get(job.reason, "pending" if job.started_at is None else "scheduled")
    return _STATES.get(job.state, (Severity.OK, "other"))


def _until(moment: datetime | None, now: datetime) -> str:
    """The time left; an expected start that has just passed is due now, not a negative time away."""
    left_s = (moment - now).total_seconds() if moment else 0
    return str(timedelta(seconds=max(0, int(left_s))))


def _clock(moment: datetime | None) -> str:
    """Local time as squeue prints it, N/A when unknown."""
    return moment.astimezone().strftime("%Y-%m-%dT%H:%M:%S") if moment else "N/A"
