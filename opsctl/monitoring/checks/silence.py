"""Does a training that runs also log?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.quantities import length_words, seconds_of, since_words
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.logs.measurements import standstill_s
from opsctl.run.logs.records import Measured
from opsctl.slurm.states import State
from opsctl.slurm.types import Job

CHECK = "silence"
HELP = """Does a training that runs also log, or does it hang?

1: no iteration was logged for a minute and 20 usual ones (or 10, if these take 10 minutes), or for `[watch]
silent_most`. A save and an evaluation have the time that they took lately; one of which that is not known has 10
minutes. 2: for twice as long, and an hour longer. After a start it has half an hour more, until its first iteration.
"""
#: Nothing was ever logged: nobody knows what it has to build first.
FIRST_START_MOST = timedelta(hours=2)
#: Past the limit, and past it twice, it will not go on by itself.
LONG = timedelta(hours=1)


@dataclass(frozen=True)
class Standstill:
    """A running training that logs nothing."""

    since: datetime
    silent: timedelta
    limit: timedelta  # longer than this is too long
    usual_s: float  # of an iteration

    def describe(self) -> str:
        """Return how long, and what is usual."""
        return f"no iteration for {length_words(self.silent)}, usually {self.usual_s:.3g} s"


def standstill(snapshot: Snapshot, settings: Settings) -> Standstill | None:
    """Return since when the running task stands still; None where it goes on, or nothing says what is usual."""
    job = snapshot.running
    if job is None or job.state != State.RUNNING:
        return None
    typical_s, logged_at = snapshot.measured.seconds_per_iteration, snapshot.last_logged_at
    if not typical_s or logged_at is None:
        return None
    since = logged_at if job.started_at is None else max(logged_at, job.started_at)
    silent = (snapshot.log_read_at or snapshot.now) - since
    limit = _limit(snapshot, settings, typical_s, is_starting=_is_starting(snapshot, job, logged_at))
    return None if silent < limit else Standstill(since, silent, limit, typical_s)


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A warning about a running task that has logged no iteration for much longer than it should; then critical."""
    job = snapshot.running
    if job is None or job.state != State.RUNNING:
        return []
    if not snapshot.measured.seconds_per_iteration or snapshot.last_logged_at is None:
        return _never_logged(snapshot, settings, job)
    found = standstill(snapshot, settings)
    if found is None:
        return []
    return [_finding(snapshot, job, f"{found.describe()}: opsctl logs", found.since, found.limit)]


def _never_logged(snapshot: Snapshot, settings: Settings, job: Job) -> list[Finding]:
    told_s = seconds_of(settings.watch, "silent_most")
    limit = FIRST_START_MOST if told_s is None else timedelta(seconds=told_s)
    # Without a log, or with one that is not to be believed, nobody knows what was logged.
    if snapshot.log_written_at is None or job.started_at is None or snapshot.now - job.started_at < limit:
        return []
    text = f"it has run for {length_words(snapshot.now - job.started_at)} and no iteration was ever logged: opsctl logs"
    return [_finding(snapshot, job, text, job.started_at, limit)]


def _finding(snapshot: Snapshot, job: Job, text: str, since: datetime, limit: timedelta) -> Finding:
    last = snapshot.measured.last_iteration
    return Finding(
        CHECK,
        Severity.CRITICAL if snapshot.now - since >= max(2 * limit, limit + LONG) else Severity.WARNING,
        text,
        since=since,
        evidence=(
            f"job {job.display_id} runs on {job.node_count} nodes; nothing logged {since_words(since)}",
            *([f"the last was iteration {last.iteration}"] if last else []),
            f"more than {length_words(limit)} is too long here",
        ),
        todo="opsctl logs; opsctl request stacks; then opsctl request requeue --why hang",
    )


def _limit(snapshot: Snapshot, settings: Settings, typical_s: float, is_starting: bool) -> timedelta:
    """How long nothing may be logged."""
    told_s = seconds_of(settings.watch, "silent_most")
    measured, expect = snapshot.measured, settings.expect
    evaluation_s = measured.longest_evaluation_seconds or expect.evaluation_seconds
    save_s = measured.longest_save_seconds or expect.save_seconds
    pauses_s = (evaluation_s or 0.0) + (save_s or 0.0)
    may_pause = (not save_s and _may_save(measured, settings)) or (
        not evaluation_s and _may_evaluate(measured, settings)
    )
    interval = _iterations_per_line(measured, settings)
    return timedelta(seconds=standstill_s(typical_s, told_s, pauses_s, is_starting, interval, may_pause))


def _may_save(measured: Measured, settings: Settings) -> bool:
    """Return whether a save can be what the log waits for; where no schedule is known it always can."""
    last = measured.last_iteration
    if measured.is_saving or settings.saves is None or last is None:
        return True
    due = settings.saves.next_after(last.iteration - 1)
    return due is not None and due < last.iteration + _iterations_per_line(measured, settings)


def _may_evaluate(measured: Measured, settings: Settings) -> bool:
    """Return the same of an evaluation."""
    last, interval = measured.last_iteration, settings.evaluates_every
    if interval is None or last is None:
        return True
    return bool(interval) and -last.iteration % interval < _iterations_per_line(measured, settings)


def _iterations_per_line(measured: Measured, settings: Settings) -> int:
    """Return of how many iterations the next line tells at most; the first line after a start does not show it."""
    return max(measured.iterations_per_line, settings.log_interval or 1)


def _is_starting(snapshot: Snapshot, job: Job, logged_at: datetime) -> bool:
    """Whether the running task has logged no iteration of its own yet, or is between two attempts."""
    last = snapshot.measured.last_iteration
    if snapshot.attempts and not snapshot.attempts[-1].is_open:
        return True
    own = [one for one in snapshot.attempts if one.is_open and one.job_id == job.job_id]
    begun_at = own[-1].iteration_at_start if own else None
    if begun_at is not None and last is not None and last.iteration <= begun_at:
        return True
    return job.started_at is not None and logged_at <= job.started_at


DETECTOR = Detector(CHECK, find, Part.QUEUE | Part.LOG | Part.ATTEMPTS, HELP)
