"""What the pseudo-cron's jobs did: one file of events, put together to runs and, job by job, to how it goes.

A run is on record before Slurm is asked for it, so that a tick that dies meanwhile leaves no job that could be started
twice. Whoever knows how a run ended may say so; its own process's word comes first, and the first word counts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

from opsctl.core.files.state_files import append_state, read_last_lines
from opsctl.run.state.scheduler import NEWEST_BYTES, CronPaths, DueTime
from trainer.formats.json_text import Moment

#: How a run stands. "refused": its file could not be taken, nothing was started; "lost": nobody knows how it ended.
RunState = Literal["asked", "queued", "running", "done", "failed", "timeout", "cancelled", "refused", "missing", "lost"]
OPEN_STATES: tuple[RunState, ...] = ("asked", "queued", "running")
#: States that are a failure of the job; being lost or cancelled says nothing about it.
FAILED_STATES: tuple[RunState, ...] = ("failed", "timeout", "refused", "missing")


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of `job-runs.jsonl`."""

    event: str  # "asked", "queued", "began", "ended", or "kept": a tick left the run before it to go on
    run: Annotated[str, msgspec.Meta(pattern=r"\A[\w-]{1,64}\Z")]
    job: Annotated[str, msgspec.Meta(pattern=r"\A[^\0]*\Z")]  # "hourly/refill"
    at: Moment
    due: DueTime = 0  # the due time of the tick that started it; 0: a person did
    by: str = ""  # who asked
    job_id: Annotated[int, msgspec.Meta(ge=0, le=2**32)] = 0  # Slurm's
    host: str = ""  # where it ran
    limit_s: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0  # "asked": how long it may take
    state: str = ""  # "ended": one of RunState
    exit_code: int | None = None
    duration_s: float | None = None
    output: str = ""  # the file with what it printed, under the cron folder
    detail: str = ""


@dataclass(frozen=True)
class CronRun:
    """One run of one job, as all that is on record says."""

    run: str
    job: str
    asked_at: datetime
    state: str
    due: int = 0
    by: str = ""
    job_id: int = 0
    host: str = ""
    limit_s: int = 0
    began_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    duration_s: float | None = None
    output: str = ""
    detail: str = ""
    kept: int = 0  # ticks that found it still there and started no other

    @property
    def is_open(self) -> bool:
        """Whether it may still run."""
        return self.state in OPEN_STATES

    def hangs(self, at: datetime) -> bool:
        """Whether it has been running for longer than it may."""
        return self.is_open and self.began_at is not None and (at - self.began_at).total_seconds() > self.limit_s


@dataclass(frozen=True)
class JobHistory:
    """How one job goes."""

    job: str
    last: CronRun
    failures: int = 0  # in a row, up to now
    failing_since: datetime | None = None  # the first of those


def new_run_id(at: datetime) -> str:
    """An id that sorts by time."""
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def append_run(paths: CronPaths, event: RunEvent) -> None:
    """Put a line on record. Raises OSError."""
    append_state(paths.folder, paths.job_runs, event)


def read_runs(paths: CronPaths) -> list[CronRun]:
    """The newest runs, in the order in which they were asked for. Raises OSError where they cannot be read."""
    return runs_of(read_last_lines(paths.folder, paths.job_runs, RunEvent, NEWEST_BYTES))


def runs_of(events: Iterable[RunEvent]) -> list[CronRun]:
    """Events put together. Of several endings the first counts."""
    found: dict[str, CronRun] = {}
    for event in events:
        run = found.get(event.run)
        if run is None:
            run = CronRun(event.run, event.job, event.at, "asked", event.due, event.by, limit_s=event.limit_s)
        found[event.run] = _with(run, event)
    return list(found.values())


def histories(runs: Iterable[CronRun]) -> dict[str, JobHistory]:
    """Job -> how it goes."""
    found: dict[str, JobHistory] = {}
    for run in runs:
        before = found.get(run.job)
        failures, since = (before.failures, before.failing_since) if before else (0, None)
        if run.state in FAILED_STATES:
            failures, since = failures + 1, since or run.ended_at or run.asked_at
        elif run.state == "done":
            failures, since = 0, None
        found[run.job] = JobHistory(run.job, run, failures, since)
    return found


def _with(run: CronRun, event: RunEvent) -> CronRun:
    if event.event == "kept":
        return replace(run, kept=run.kept + 1)
    if not run.is_open:
        return run
    if event.event == "queued":
        return replace(run, state="queued" if run.began_at is None else "running", job_id=event.job_id)
    if event.event == "began":
        job_id = event.job_id or run.job_id
        return replace(run, state="running", began_at=event.at, host=event.host, job_id=job_id, output=event.output)
    if event.event == "ended":
        return replace(
            run,
            state=event.state or "lost",
            ended_at=event.at,
            exit_code=event.exit_code,
            duration_s=event.duration_s,
            output=event.output or run.output,
            detail=event.detail,
        )
    return run
