"""`status` as text: one screen that is read at a glance. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import datetime

from opsctl.core.output import printable, shortened
from opsctl.core.timestamps import iso
from opsctl.monitoring.finding import Severity, rough, since
from opsctl.monitoring.overview import Extras, OpenFinding, Overview
from opsctl.monitoring.snapshot import CronSeen, Snapshot
from opsctl.run.attempts.ending import Ending, ending_words
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.hidden_jobs import CANNOT_SEE
from opsctl.run.attempts.hidden_jobs import describe as describe_unseen
from opsctl.run.attempts.outcome import describe
from opsctl.run.state.alert_log import ChannelSeen
from opsctl.run.state.chains import Chain, resting
from opsctl.slurm.durations import format_duration
from opsctl.slurm.states import State
from opsctl.slurm.types import Job
from opsctl.ui.status.queue import why
from opsctl.ui.status.text import RED, STATE_COLOURS, YELLOW, answer_age, paint
from trainer.formats.logs.training_line import TrainingLine

LABEL_WIDTH = 13
_GOOD = ("done", "running")
_BAR = 24
#: Rows that are shown of longer lists.
_QUEUE_ROWS = 4
_ATTEMPT_ROWS = 3
_NAME = 40
_HEADLINES = {
    "unknown": f"UNKNOWN: {CANNOT_SEE}",
    "held": "HELD in the queue: no task starts before opsctl request release-queued",
    "finished": "FINISHED",
    "absent": "NOT IN THE QUEUE: nothing runs and nothing waits",
    "unsubmitted": "NOT SUBMITTED YET",
}


def status_lines(
    overview: Overview, findings: Sequence[OpenFinding], width: int, colour: bool, extras: Extras | None = None
) -> list[str]:
    """Return the screen, wrapped at `width` characters; only a single longer word, such as a path, exceeds it."""
    name, said = shortened(overview.name, _NAME), printable(headline(overview))
    clock = iso(overview.seen.now, "minutes")
    gap = width - len(name) - len(said) - len(clock) - 2
    first = f"{paint(name, '1', colour)}  {paint(said, '1;' + colour_of(overview), colour)}"
    lines = [first + (" " * gap + clock if gap >= 2 else "")]
    for finding in findings:
        code = YELLOW if finding.severity is Severity.WARNING else RED
        word = paint(f"{finding.severity.name.lower():<{LABEL_WIDTH}}", "1;" + code, colour)
        first_line, *more = wrapped(finding.finding.text, width)
        more += wrapped(finding.story(overview.seen.now), width, empty=())
        lines += [f"{word}{first_line}", *(" " * LABEL_WIDTH + line for line in more)]
    return lines + labelled(_rows(overview, extras or Extras()), width)


def labelled(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return each text after its label, wrapped at `width` characters."""
    lines: list[str] = []
    for label, text in rows:
        first_line, *more = wrapped(text, width)
        lines += [f"{label:<{LABEL_WIDTH}}{first_line}", *(" " * LABEL_WIDTH + line for line in more)]
    return lines


def _rows(overview: Overview, extras: Extras) -> list[tuple[str, str]]:
    started = bool(overview.seen.attempts) or overview.iteration is not None
    first: list[tuple[str, str]] = []  # the facts that are needed first, then the jobs
    if started:
        first = [
            ("progress", progress_text(overview)),
            ("loss", loss_text(overview.seen)),
            ("checkpoint", checkpoint_text(overview.seen)),
            ("speed", speed_text(overview)),
            ("left", left_text(overview)),
        ]
    elif overview.state == "running":
        first = [("progress", "starting: the log has no iteration yet")]
    return [
        *first,
        *job_rows(overview),
        *writer_row(overview.seen),
        *(attempt_rows(overview.seen) if started else ()),
        *health_rows(overview, extras),
        ("kill switch", kill_switch_text(overview.seen)),
        ("revision", _revision(overview.seen)),
        ("output", str(overview.output)),
    ]


def health_rows(overview: Overview, extras: Extras) -> list[tuple[str, str]]:
    """Return what looks after the run, and its evaluations, goodput and energy, where there is something to show."""
    seen = overview.seen
    rows = [
        ("program", " ".join(extras.lacks)),
        ("refill", "" if seen.is_finished else refill_line(seen.chains, extras)),
        ("cron", cron_line(seen.cron, seen.now)),
        ("alerts", alerts_line(seen.channels, extras, seen.now)),
        ("evaluation", extras.evaluation.told if extras.evaluation else ""),
        ("goodput", extras.goodput.text if extras.goodput else ""),
        ("carbon", extras.energy.told if extras.energy else ""),
    ]
    return [(label, text) for label, text in rows if text]


def colour_of(overview: Overview) -> str:
    """Return the colour of its headline."""
    if overview.state == "absent" and overview.seen.stopped_by:
        return YELLOW
    return STATE_COLOURS.get(overview.state, RED)


def headline(overview: Overview) -> str:
    """Return the state in a few words."""
    job = overview.seen.running
    if job is not None and overview.state == job.state.lower():
        at, left_s = overview.seen.now, job.left_at_s(overview.seen.now)
        said = f"{job.state} for {format_duration(job.elapsed_at_s(at))}"
        if left_s is not None and job.state == State.RUNNING:
            said += f", {format_duration(left_s)} left of its time"
        return said
    if overview.state == "waiting":
        said = _waits(overview.seen.behind[0], overview.seen.now)
        return f"WAITING{said.removeprefix('waits')}" if said.startswith("waits") else f"WAITING: {said}"
    if overview.seen.blind is not None and overview.state == "unknown":
        return "UNKNOWN: Slurm does not answer"
    if overview.state == "unknown" and not overview.seen.unseen:
        return "UNKNOWN: a job trains it that the queue does not show"
    if overview.state == "absent" and overview.seen.stopped_by:
        return f"STOPPED: {overview.seen.stopped_by}"
    return _HEADLINES.get(overview.state, overview.state.upper())


def job_rows(overview: Overview) -> list[tuple[str, str]]:
    """Return the running job, and those behind it."""
    if overview.seen.blind is not None:
        return [("jobs", "unknown")]
    age = answer_age(overview.seen.queue_age_s)
    rows: list[tuple[str, str]] = [("slurm", age)] if age else []
    job = overview.seen.running
    if job is not None:
        until = f", until {iso(job.ends_at, 'minutes')}" if job.ends_at else ""
        nodes = f"{job.node_count} node{'s' if job.node_count != 1 else ''} {job.nodes}"
        rows.append(("job", f"{job.display_id} of {job.user} on {job.partition}: {nodes}{until}"))
    behind = overview.seen.behind
    for number, one in enumerate(behind[:_QUEUE_ROWS]):
        rows.append(("" if number else "queue", f"{one.display_id} of {one.user} {_waits(one, overview.seen.now)}"))
    if len(behind) > _QUEUE_ROWS:
        rows.append(("", f"and {len(behind) - _QUEUE_ROWS} more: opsctl queue"))
    if overview.seen.unseen:
        said = f"{CANNOT_SEE}; {describe_unseen(overview.seen.unseen)} may be queued or running"
        rows.append(("others", said))
    elif not behind and overview.state not in ("finished", "unsubmitted"):
        what = "nothing behind it: opsctl submit --after auto" if job is not None else "empty: opsctl submit"
        switch = overview.seen.kill_switch
        if job is None and switch is not None and switch.is_triggered:
            what = "empty: opsctl kill-switch deactivate, then opsctl submit to continue"
        rows.append(("queue", what))
    if overview.state == "unsubmitted":
        rows.append(("queue", "empty: opsctl plan, then opsctl submit"))
    return rows


def writer_row(seen: Snapshot) -> list[tuple[str, str]]:
    """Return the lease's holder, if the queue does not show which job trains."""
    told = seen.lease.told() if seen.blind is not None or seen.writer_elsewhere is not None else ""
    return [("writer", told)] if told else []


def _waits(job: Job, now: datetime) -> str:
    """Return what a job that does not run waits for."""
    if not job.is_pending and not job.is_held:
        return f"is {job.state.lower()}"
    said = why(job)
    if job.started_at is None or job.is_held:
        return said
    return f"expected in {ago(job.started_at, now, -1)}, {said}"


def progress_text(overview: Overview) -> str:
    """Return the progress, with a bar."""
    if overview.iteration is None:
        return "no iteration yet"
    iterations, samples, total_samples = f"iteration {overview.iteration}", "", overview.seen.total_samples
    if overview.iterations_in_all:
        iterations += f" of {overview.iterations_in_all}"
    if overview.samples is not None:
        samples = _count(overview.samples) + (f" of {_count(total_samples)}" if total_samples else "") + " samples"
    # What the percentage counts comes first: samples and iterations differ while the batch grows.
    said = ", ".join(filter(None, (samples, iterations) if total_samples else (iterations, samples)))
    if overview.share is None:
        return said
    full = int(overview.share * _BAR)
    return f"[{'#' * full}{'-' * (_BAR - full)}] {overview.percent_text}  {said}"


def speed_text(overview: Overview) -> str:
    """Return the speed, or since when the training makes no progress."""
    measured, still = overview.seen.measured, overview.standstill
    if still is not None:
        return f"no progress: {still.describe()}"
    parts = []
    if measured.seconds_per_iteration is not None:
        parts.append(f"{_figures(measured.seconds_per_iteration)} s/iteration")
    if measured.samples_per_second is not None:
        parts.append(f"{_figures(measured.samples_per_second)} samples/s")
    if measured.tflops:  # a CPU's are 0.00 in the log: nothing to tell
        parts.append(f"{_figures(measured.tflops)} TFLOPs per GPU")
    return ", ".join(parts) or "not known yet"


def left_text(overview: Overview) -> str:
    """Return the remaining time."""
    if overview.seen.is_finished:
        return "nothing"
    if overview.left_s is None:
        return "not known yet"
    length = format_duration(overview.left_s)
    at = overview.finishes_at
    if at is None:
        return f"{length} of training at that speed"
    return f"{length}, done at {iso(at, 'minutes')} at this speed"


def loss_text(seen: Snapshot) -> str:
    """Return the last loss and its age."""
    last, at = seen.measured.last_iteration, seen.last_logged_at
    if last is None or at is None:
        return "none logged yet"
    least = "at least " if seen.is_loss_age_a_minimum and seen.running is not None else ""
    line = seen.measured.newest_loss or last
    newer = "," if line.iteration == last.iteration else f"; iteration {last.iteration}"
    return f"{_loss(line)} at iteration {line.iteration}{newer} logged {least}{ago(at, seen.now)} ago"


def _loss(line: TrainingLine) -> str:
    if line.is_left_out:
        return "skipped on request"
    if line.loss is not None:
        return f"{line.loss:.6g}"
    # Every program prints the count behind the loss: a line without it was cut short.
    return "not a number" if line.nan_iterations is not None else "not logged"


def checkpoint_text(seen: Snapshot) -> str:
    """Return the last complete checkpoint."""
    checkpoint, at = seen.checkpoint, seen.checkpoint_at
    if seen.checkpoint_problem:
        return "not known"  # what is wrong stands above, among the findings
    if checkpoint is None:
        return "none yet"
    said = f"iteration {checkpoint.iteration}"
    return said if at is None else f"{said}, saved {ago(at, seen.now)} ago at {iso(at, 'minutes')}"


def attempt_rows(seen: Snapshot) -> list[tuple[str, str]]:
    """Return the newest attempts, newest first."""
    newest = seen.attempts[: -_ATTEMPT_ROWS - 1 : -1]
    rows = [("" if number else "attempts", _attempt(one, seen)) for number, one in enumerate(newest)]
    return rows or [("attempts", "none yet")]


def _attempt(attempt: Attempt, seen: Snapshot) -> str:
    said = f"{attempt.number}: {attempt.job_and_restart} "
    if attempt.is_open:
        said += f"began at {iso(attempt.opened_at, 'minutes')} from iteration {attempt.iteration_at_start or 0}"
        if any(one.runs_since_attempt == attempt.number for one in seen.unseen):
            said += "; this host cannot see if it still runs"
        elif seen.writer_elsewhere is not None and seen.writer_elsewhere.attempt == attempt.id:
            said += "; this queue does not show its job, but it continues"
        elif seen.blind is None and _is_gone(attempt, seen):
            said += "; its job is gone. To see how it ended: opsctl attempts"
        return said
    said += ending_words(attempt.reason or Ending.UNKNOWN)
    if attempt.iteration_at_end is not None:
        said += f" at iteration {attempt.iteration_at_end}"
    if attempt.closed_at is not None:
        said += f", {ago(attempt.closed_at, seen.now)} ago"
    if attempt.verdict is not None and attempt.verdict.is_known:
        said += f"; {attempt.verdict.words}: opsctl triage {attempt.display_id}"
    return said + (f"; {describe(attempt.first_failure)}" if attempt.first_failure else "")


def _is_gone(attempt: Attempt, seen: Snapshot) -> bool:
    """Return whether Slurm was asked since the attempt began and does not have its job."""
    if attempt.opened_at is not None and seen.queue_asked_at is not None and attempt.opened_at > seen.queue_asked_at:
        return False
    return all(job.job_id != attempt.job_id for job in seen.jobs)


def kill_switch_text(seen: Snapshot) -> str:
    """Return whether it is triggered, and who could trigger it."""
    switch = seen.kill_switch
    if switch is None:
        return "not known"
    if switch.is_triggered:
        return f"TRIGGERED {switch.describe()}"
    return f"not triggered; {switch.readiness()}"


def _revision(seen: Snapshot) -> str:
    published = seen.published
    if published is None:
        return "none published yet: submit publishes the run file"
    said = f"{published.name}, published {iso(published.at, 'minutes')} by {published.by}"
    if published.differs:
        return f"{said}; the run file differs in {', '.join(published.differs)}"
    return said


def wrapped(text: str, width: int, empty: Sequence[str] = ("",)) -> list[str]:
    """Return the lines of `text` for the space next to a label; `empty` if there are none."""
    clean = printable(text.replace("\n", " "))
    room = max(20, width - LABEL_WIDTH)
    return textwrap.wrap(clean, room, break_long_words=False, break_on_hyphens=False) or [*empty]


def ago(moment: datetime, now: datetime, sign: int = 1) -> str:
    """Return how long ago `moment` is; with sign -1 how far ahead."""
    return format_duration(sign * (now - moment).total_seconds())


def _count(number: int) -> str:
    """Return 87600 unchanged, 220000000 as 220M."""
    if number < 1_000_000:
        return str(number)
    return f"{number / 1e6:.4g}M" if number < 1e9 else f"{number / 1e9:.4g}B"


def _figures(value: float) -> str:
    """Return three digits, all of them from 1000 on."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}" if value >= 100 else f"{value:.3g}"


def cron_line(cron: CronSeen | None, now: datetime) -> str:
    """Return the state of the scheduler for people; empty if it was never started."""
    if cron is None:
        return ""
    if cron.problem:
        return f"cannot be seen: {cron.problem}"
    if not cron.is_started:
        return (
            f"stopped; it was carried by {cron.carried_by}: opsctl cron start{cron.option}" if cron.carried_by else ""
        )
    beat = "no tick yet" if cron.heartbeat_at is None else f"last tick {since(cron.heartbeat_at, now)} ago"
    parts = [f"{beat}, by {cron.carried_by}"]
    if cron.next_due_at is not None:
        left_s = (cron.next_due_at - now).total_seconds()
        parts.append(f"next in {rough(left_s)}" if left_s >= 0 else f"the next is {rough(-left_s)} late")
    for job in cron.jobs:
        if job.state not in _GOOD or job.failures:
            row = f", failed {job.failures} times in a row" if job.failures > 1 else ""
            state = "" if job.state == "failed" and row else f" {job.state}"
            parts.append(f"{job.name}{state or row[1:]}{row if state else ''}{f': {job.detail}' if job.detail else ''}")
    return "; ".join(parts)


def refill_line(chains: Sequence[Chain], extras: Extras) -> str:
    """Return why the queue is not refilled; empty if it is."""
    cancel = resting(chains, extras.cancels)
    if cancel is None:
        return ""
    return f"paused: {cancel.describe()}; to continue: opsctl submit"


def alerts_line(channels: Sequence[ChannelSeen], extras: Extras, now: datetime) -> str:
    """Return the state of the alerts for people; empty while all are sent."""
    parts, silence = [f"cannot be read: {extras.problem}"] if extras.problem else [], extras.silence
    if silence is not None:
        why = f": {silence.why}" if silence.why else ""
        parts.append(f"silenced until {iso(silence.until, 'minutes')} by {silence.by}{why}")
    for one in channels:
        if one.failing_since is not None:
            detail = f": {one.detail}" if one.detail else ""
            waiting = f", {one.waiting} waiting" if one.waiting else ""
            parts.append(f"{one.name} fails for {since(one.failing_since, now)}{waiting}{detail}")
        elif one.waiting:
            parts.append(f"{one.name} has {one.waiting} waiting")
        if one.dropped:
            parts.append(f"{one.name} dropped {one.dropped}: opsctl alerts list --all")
    return "; ".join(parts)
