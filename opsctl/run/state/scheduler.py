"""The pseudo-cron on disk: where its files are, who carries it, which due times its ticks have covered, its heartbeat.

All of it lies under the cron folder. The heartbeat is a file's mtime, stamped by the file server when a tick has done
its part; its age is measured with that clock too.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from opsctl.core.account import account_and_host, account_name
from opsctl.core.files.heartbeats import beat, beaten_at, file_servers_now_ns
from opsctl.core.files.state_files import append_state, read_last_lines, read_whole, write_state
from opsctl.core.files.trusted import opened_folder
from opsctl.core.timestamps import now
from opsctl.run.config.paths import Place
from trainer.formats.json_text import Moment

#: What carries the ticks.
Via = Literal["slurm", "scrontab", "crontab"]
HOUR_S = 3600
SHORTEST_S = 2  # of a trial
TICKS_A_DAY = 24
#: Periods without a heartbeat after which a chain is dead. It is restarted before the second tick is missed.
DEAD_PERIODS = 1.75
#: What is read of the files that grow: months of hourly ticks.
NEWEST_BYTES = 512 << 10
#: Of a record that is damaged, or closed to the reader.
_REMEDY = "if damaged, opsctl cron start --take-over writes it again; if closed, its group can"
_COMMENT = re.compile(r"opsctl cron=(?P<token>[0-9a-f]+) (?P<kind>tick|run)=(?P<value>\S+)")


@dataclass(frozen=True)
class CronPaths:
    """The places in a cron folder."""

    folder: Path

    #: Jobs of every tick.
    hourly = Place("cron.hourly", "folder")
    #: Jobs of every day's first tick.
    daily = Place("cron.daily", "folder")
    #: What jobs printed.
    logs = Place("logs", "folder")
    #: What is below.
    state = Place(".opsctl", "folder")
    #: A CronChain.
    chain = Place(".opsctl/chain.json", "folder")
    #: Held while ticks are queued or the chain changes hands: Slurm is asked meanwhile.
    chain_lock = Place(".opsctl/chain.lock", "folder")
    #: Held while a due time or a job is claimed: for a moment.
    lock = Place(".opsctl/lock", "folder")
    #: Lines of TickEvent.
    ticks = Place(".opsctl/ticks.jsonl", "folder")
    #: Lines of RunEvent.
    job_runs = Place(".opsctl/job-runs.jsonl", "folder")
    #: Disk that is given up for the records of ticks and jobs when none is left.
    reserve = Place(".opsctl/reserve", "folder")
    #: Its mtime counts.
    heartbeat = Place(".opsctl/heartbeat", "folder")

    def job(self, name: str) -> Path:
        """Return the file of the job that is called `hourly/NAME` or `daily/NAME`."""
        kind, _, base = name.partition("/")
        return (self.daily if kind == "daily" else self.hourly) / f"{base}.slurm"

    def text(self, run: str) -> Path:
        """Return the path of one run's program, as it was read when the run was requested."""
        return self.state / "texts" / f"{run}.slurm"


class CronChain(msgspec.Struct, frozen=True, kw_only=True):
    """`chain.json`: the one chain of ticks that counts."""

    token: str  # in every tick; one with another token leaves
    via: Via
    period_s: Annotated[int, msgspec.Meta(ge=SHORTEST_S, le=HOUR_S)]
    carried_by: str  # the account as whom ticks and jobs run
    host: str
    started_at: Moment
    stopped_by: str = ""
    stopped_at: Moment | None = None
    schema_version: int = 1

    @property
    def is_stopped(self) -> bool:
        """Return whether a user has stopped it; its ticks leave."""
        return self.stopped_at is not None

    def carrier(self) -> str:
        """Return its owner and carrier in words."""
        return f"{self.carried_by} via {self.via}"


#: Seconds since the epoch, such as calendars know: a line with another was written by no tick.
DueTime = Annotated[int, msgspec.Meta(ge=0, le=253_000_000_000)]


class TickEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `ticks.jsonl`. Due times are seconds since the epoch, whole multiples of the period.

    "started": earlier due times need no catch-up. "claimed": this tick does the work of all due times from `first` to
    `due`, and no other tick does. "done": it has.
    """

    event: str
    due: DueTime
    first: DueTime = 0  # "claimed": the earlier ones are merged into `due`
    period_s: Annotated[int, msgspec.Meta(ge=SHORTEST_S, le=HOUR_S)] = HOUR_S
    at: Moment
    token: str = ""
    by: str = ""  # user@host
    job_id: int = 0  # Slurm's; 0 without one
    late_s: float | None = None  # "claimed": after `due`
    duration_s: float | None = None  # "done"
    started: int | None = None  # "done": jobs
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class CronComment:
    """The parsed Slurm comment of a job of the scheduler."""

    token: str
    kind: str  # "tick" or "run"
    value: str  # a tick's due time, or the run's id

    def __str__(self) -> str:
        return f"opsctl cron={self.token} {self.kind}={self.value}"

    @property
    def due(self) -> int | None:
        """A tick's due time."""
        return int(self.value) if self.kind == "tick" and self.value.isdigit() else None


def parse_cron_comment(text: str) -> CronComment | None:
    """Parse a job's comment; None for one that is not the scheduler's."""
    match = _COMMENT.fullmatch(text)
    return CronComment(match["token"], match["kind"], match["value"]) if match else None


def read_chain(paths: CronPaths) -> CronChain | None:
    """Return the current chain; None before the first start. Raises OpsctlError for a damaged or closed record."""
    return read_whole(paths.folder, paths.chain, CronChain, _REMEDY)


def write_chain(paths: CronPaths, chain: CronChain) -> None:
    """Let `chain` be the one that counts. Raises OSError."""
    write_state(paths.folder, paths.chain, chain)


def stopped(chain: CronChain) -> CronChain:
    """`chain`, stopped by the caller now."""
    return msgspec.structs.replace(chain, stopped_by=account_name(), stopped_at=now().replace(microsecond=0))


def append_tick(paths: CronPaths, event: TickEvent) -> None:
    """Put a line on record. Raises OSError."""
    append_state(paths.folder, paths.ticks, event)


def read_ticks(paths: CronPaths) -> list[TickEvent]:
    """Return the newest lines, oldest first. Raises OSError if they cannot be read."""
    return read_last_lines(paths.folder, paths.ticks, TickEvent, NEWEST_BYTES)


def this_tick(event: str, due: int, chain: CronChain, job_id: int, **more: object) -> TickEvent:
    """Return a line by this process, now."""
    said = {"token": chain.token, "by": account_and_host(), "job_id": job_id, "period_s": chain.period_s, **more}
    return TickEvent(event=event, due=due, at=now(), **said)  # type: ignore[arg-type]


def beat_heart(paths: CronPaths) -> None:
    """Record that a tick has done its part. Raises OSError."""
    beat(paths.folder, paths.heartbeat)


@dataclass(frozen=True)
class Heartbeat:
    """The last sign of life."""

    at: datetime  # by the file server
    age_s: float  # by the same clock, where a file may be made there; else by this host's

    def is_dead(self, period_s: float) -> bool:
        """Return whether a chain of that period has died."""
        return self.age_s > DEAD_PERIODS * period_s


def heartbeat(paths: CronPaths) -> Heartbeat | None:
    """Return the last heartbeat; None before the first. Raises OSError."""
    at = beaten_at(paths.folder, paths.heartbeat)
    if at is None:
        return None
    with opened_folder(paths.folder, paths.state) as (folder, _):
        now_ns = file_servers_now_ns(folder, paths.heartbeat)
    now_s = now().timestamp() if now_ns is None else now_ns / 1e9
    return Heartbeat(at, max(0.0, now_s - at.timestamp()))


#: The states of a run. "refused": its file was not accepted, nothing was started; "lost": its end is unknown.
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
        """Return whether it may still run."""
        return self.state in OPEN_STATES

    def hangs(self, at: datetime) -> bool:
        """Return whether it has been running for longer than allowed."""
        return self.is_open and self.began_at is not None and (at - self.began_at).total_seconds() > self.limit_s


@dataclass(frozen=True)
class JobHistory:
    """The history of one job."""

    job: str
    last: CronRun
    failures: int = 0  # in a row, up to now
    failing_since: datetime | None = None  # the first of those


def new_run_id(at: datetime) -> str:
    """Return an id that sorts by time."""
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def append_run(paths: CronPaths, event: RunEvent) -> None:
    """Put a line on record. Raises OSError."""
    append_state(paths.folder, paths.job_runs, event)


def read_runs(paths: CronPaths) -> list[CronRun]:
    """Return the newest runs, in the order of their requests. Raises OSError if they cannot be read."""
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
