"""The output of `opsctl cron status`: the chain, its ticks and jobs, from the records and, if it answers, Slurm."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.errors import OpsctlError, SlurmError, file_problem
from opsctl.core.timestamps import iso, to_the_second
from opsctl.jobs.scheduler.chain import QueuedTick, is_dead, queued_ticks
from opsctl.jobs.scheduler.context import Cron, job_files
from opsctl.jobs.scheduler.grid import dues_between, next_dues
from opsctl.run.state.scheduler import (
    CronChain,
    CronRun,
    Heartbeat,
    JobHistory,
    RunState,
    TickEvent,
    heartbeat,
    histories,
    read_chain,
    read_runs,
    read_ticks,
)
from opsctl.slurm.durations import format_duration
from trainer.formats.json_text import Moment


class PrintedTick(Struct, frozen=True, kw_only=True):
    """One due time and what became of it."""

    due: Annotated[Moment, Meta(description="The due time.")]
    state: Annotated[str, Meta(description="`done`, `claimed` (at work, or killed at it), or `merged`.")]
    into: Annotated[
        Moment | None, Meta(description="For a merged tick: the due time of the tick that did its work.")
    ] = None
    by: Annotated[str, Meta(description="Its owner, as user@host.")] = ""
    job_id: Annotated[int | None, Meta(description="The tick's Slurm job; null without one.")] = None
    late_s: Annotated[float | None, Meta(description="How long after the due time it began; null for a merged one.")]
    duration_s: Annotated[float | None, Meta(description="How long it took; null until it is done.")]
    started: Annotated[int | None, Meta(description="Jobs that it started; null until it is done.")]
    problems: Annotated[tuple[str, ...], Meta(description="Its problem; else empty.")] = ()


class PrintedCronRun(Struct, frozen=True, kw_only=True):
    """One run of a job of the pseudo-cron."""

    run: Annotated[str, Meta(description="Its id.")]
    job: Annotated[str, Meta(description="The job, as folder/name.")]
    state: Annotated[RunState, Meta(description="Its state; `lost` if its end is unknown.")]
    due: Annotated[Moment | None, Meta(description="Its due time; null if a user started it.")]
    by: Annotated[str, Meta(description="As whom it runs.")]
    job_id: Annotated[int | None, Meta(description="Its Slurm job; null if unknown.")]
    asked_at: Annotated[Moment, Meta(description="When it was put on record.")]
    began_at: Annotated[Moment | None, Meta(description="When its program was started.")]
    ended_at: Annotated[Moment | None, Meta(description="When its end was put on record.")]
    duration_s: Annotated[float | None, Meta(description="Seconds that the program took, if its job recorded the end.")]
    exit_code: Annotated[int | None, Meta(description="Exit code of the program; 128 + N if signal N ended it.")]
    is_hanging: Annotated[bool, Meta(description="True if it has been running for longer than it may.")]
    passed_over: Annotated[int, Meta(description="Ticks that found it still there and started no other.")]
    output: Annotated[str | None, Meta(description="Path of its output.")]
    detail: Annotated[str, Meta(description="More, in words.")]


class PrintedCronJob(Struct, frozen=True, kw_only=True):
    """One job of the pseudo-cron."""

    name: Annotated[str, Meta(description="Folder and name: hourly/refill.")]
    is_there: Annotated[bool, Meta(description="True if its file is in the folder now.")]
    failures: Annotated[int, Meta(description="In a row, up to now.")]
    failing_since: Annotated[Moment | None, Meta(description="The first failure of that row.")]
    last: Annotated[PrintedCronRun | None, Meta(description="Its newest run; null before the first.")]


class PrintedCron(Struct, frozen=True, kw_only=True):
    """The pseudo-cron of a folder."""

    folder: Annotated[str, Meta(description="The cron folder.")]
    state: Annotated[
        str,
        Meta(description="`alive`, `dead` (no sign of life for too long), `stopped`, `never started`; `unreadable`."),
    ]
    via: Annotated[str | None, Meta(description="`slurm`, `scrontab` or `crontab`.")]
    carried_by: Annotated[str | None, Meta(description="Account of the ticks and jobs.")]
    stopped_by: Annotated[str | None, Meta(description="The user who stopped it.")]
    period_s: Annotated[int | None, Meta(description="From one due time to the next.")]
    heartbeat_at: Annotated[Moment | None, Meta(description="The last sign of life, by the file server's clock.")]
    heartbeat_age_s: Annotated[float | None, Meta(description="How old that is, by the same clock.")]
    next_due: Annotated[Moment | None, Meta(description="The next due time.")]
    queued: Annotated[
        list[str] | None, Meta(description="Ticks in Slurm's queue as id, state, reason; null if unknown.")
    ]
    problem: Annotated[str | None, Meta(description="Things that could not be checked, each with its reason.")]
    ticks: Annotated[list[PrintedTick], Meta(description="The newest due times, oldest first.")]
    jobs: Annotated[list[PrintedCronJob], Meta(description="The jobs, by name.")]
    runs: Annotated[list[PrintedCronRun], Meta(description="The newest runs, oldest first.")]


@dataclass(frozen=True)
class Look:
    """One look at the pseudo-cron."""

    now: datetime
    chain: CronChain | None
    beat: Heartbeat | None
    events: list[TickEvent]
    runs: list[CronRun]
    files: list[str]
    queued: list[str] | None
    problem: str = ""
    is_unreadable: bool = False  # the record of the chain: it is unknown whether there is one

    @property
    def state(self) -> str:
        """In a word or two."""
        if self.chain is None:
            return "unreadable" if self.is_unreadable else "never started"
        if self.chain.is_stopped:
            return "stopped"
        return "dead" if is_dead(self.chain, self.beat) else "alive"

    @property
    def next_due(self) -> datetime | None:
        """None where none is to come."""
        if self.chain is None or self.chain.is_stopped:
            return None
        return _moment(next_dues(self.now.timestamp(), self.chain.period_s, 1)[0])


def look(cron: Cron, now: datetime, slurm: bool = True) -> Look:
    """Everything that can be seen now; what cannot is in `problem`. slurm: ask it what is queued."""
    problems: list[str] = []
    chain: CronChain | None = None
    is_unreadable = False
    try:
        chain = read_chain(cron.paths)
    except OpsctlError as error:
        is_unreadable = True
        problems.append(str(error))
    try:
        beat, events, runs = heartbeat(cron.paths), read_ticks(cron.paths), read_runs(cron.paths)
    except FileNotFoundError:
        beat, events, runs = None, [], []
    files = []
    for daily in (False, True):
        try:
            files += [file.name for file in job_files(cron.paths, daily)]
        except FileNotFoundError:
            pass
        except OSError as error:
            problems.append(file_problem(error))
    queued = None
    if slurm and chain is not None and chain.via == "slurm" and not chain.is_stopped:
        try:
            queued = [_queued_words(tick) for tick in queued_ticks(cron, chain)]
        except SlurmError as error:
            problems.append(str(error))
    return Look(now, chain, beat, events, runs, files, queued, "; ".join(problems), is_unreadable)


def due_rows(events: list[TickEvent], count: int) -> list[PrintedTick]:
    """Return the newest `count` due times that claims cover, each once, oldest first."""
    done = {(event.due, event.token, event.job_id): event for event in events if event.event == "done"}
    rows: list[PrintedTick] = []
    for event in [one for one in events if one.event == "claimed"][-count:]:
        for due in dues_between(event.first, event.due - 1, event.period_s)[-count:]:
            into = _moment(event.due)
            rows.append(
                PrintedTick(due=_moment(due), state="merged", into=into, late_s=None, duration_s=None, started=None)
            )
        end = done.get((event.due, event.token, event.job_id))
        rows.append(
            PrintedTick(
                due=_moment(event.due),
                state="done" if end else "claimed",
                by=event.by,
                job_id=event.job_id or None,
                late_s=event.late_s,
                duration_s=end.duration_s if end else None,
                started=end.started if end else None,
                problems=end.problems if end else (),
            )
        )
    return rows[-count:]


def printed_cron(folder: str, seen: Look, count: int) -> PrintedCron:
    """For programs, with the newest `count` due times and runs."""
    chain, beat = seen.chain, seen.beat
    known = histories(seen.runs)
    names = sorted({*seen.files, *(name for name in known if known[name].last.is_open)})
    return PrintedCron(
        folder=folder,
        state=seen.state,
        via=chain.via if chain else None,
        carried_by=chain.carried_by if chain else None,
        stopped_by=(chain.stopped_by or None) if chain else None,
        period_s=chain.period_s if chain else None,
        heartbeat_at=to_the_second(beat.at) if beat else None,
        heartbeat_age_s=round(beat.age_s, 1) if beat else None,
        next_due=seen.next_due,
        queued=seen.queued,
        problem=seen.problem or None,
        ticks=due_rows(seen.events, count),
        jobs=[_printed_job(name, known.get(name), name in seen.files, seen.now) for name in names],
        runs=[printed_run(run, seen.now) for run in seen.runs[-count:]],
    )


def printed_run(run: CronRun, at: datetime) -> PrintedCronRun:
    """One run for programs."""
    return PrintedCronRun(
        run=run.run,
        job=run.job,
        state=run.state,  # type: ignore[arg-type]
        due=_moment(run.due) if run.due else None,
        by=run.by,
        job_id=run.job_id or None,
        asked_at=to_the_second(run.asked_at),
        began_at=to_the_second(run.began_at),
        ended_at=to_the_second(run.ended_at),
        duration_s=run.duration_s,
        exit_code=run.exit_code,
        is_hanging=run.hangs(at),
        passed_over=run.kept,
        output=run.output or None,
        detail=run.detail,
    )


def status_lines(folder: str, seen: Look, count: int) -> list[str]:
    """For people."""
    chain, said = seen.chain, printed_cron(folder, seen, count)
    lines = [f"cron      {folder}"]
    if chain is None:
        lines.append(f"chain     {seen.state}" + (": opsctl cron start" if seen.state == "never started" else ""))
    elif chain.is_stopped:
        lines.append(f"chain     stopped by {chain.stopped_by} at {iso(chain.stopped_at)}: opsctl cron start")
    else:
        beat = f"last sign of life {format_duration(seen.beat.age_s)} ago" if seen.beat else "no sign of life"
        advice = "" if seen.state == "alive" else ": opsctl cron start moves it to you"
        lines.append(
            f"chain     {seen.state}, {chain.carrier()}, every {format_duration(chain.period_s)}, {beat}{advice}"
        )
        lines.append(f"next      {iso(seen.next_due)}")
    if seen.queued is not None:
        lines.append(f"queued    {', '.join(seen.queued) or 'nothing'}")
    lines += [_tick_line(tick) for tick in said.ticks[-count:]]
    lines += [_job_line(job) for job in said.jobs]
    if seen.problem:
        lines.append(f"problem   {seen.problem}")
    return lines


def _tick_line(tick: PrintedTick) -> str:
    words = f"tick      {iso(tick.due)} {tick.state}"
    if tick.into:
        return f"{words} into {iso(tick.into)}"
    words += f", {tick.late_s or 0:.1f} s late" + (f", {tick.started} started" if tick.started is not None else "")
    return words + "".join(f"; {problem}" for problem in tick.problems)


def _job_line(job: PrintedCronJob) -> str:
    if job.last is None:
        return f"job       {job.name}: not run yet"
    last = job.last
    words: str = "hanging" if last.is_hanging else last.state
    words += f" ({last.detail})" if last.detail else ""
    took = f" after {format_duration(last.duration_s)}" if last.duration_s is not None else ""
    row = f", {job.failures} failures in a row since {iso(job.failing_since)}" if job.failures > 1 else ""
    at = iso(last.ended_at or last.began_at or last.asked_at)
    gone = "" if job.is_there else ", its file is gone"
    return f"job       {job.name}: {words}{took} at {at}{row}{gone}" + (f"; {last.output}" if last.output else "")


def _printed_job(name: str, history: JobHistory | None, is_there: bool, at: datetime) -> PrintedCronJob:
    return PrintedCronJob(
        name=name,
        is_there=is_there,
        failures=history.failures if history else 0,
        failing_since=to_the_second(history.failing_since) if history else None,
        last=printed_run(history.last, at) if history else None,
    )


def _queued_words(tick: QueuedTick) -> str:
    job = tick.job
    return f"{job.display_id} for {iso(_moment(tick.due))} {job.state}{f' ({job.reason})' if job.is_pending else ''}"


def _moment(due: int) -> datetime:
    return datetime.fromtimestamp(due, UTC).astimezone()
