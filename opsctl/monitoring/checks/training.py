"""Checks of the queue and the attempts: the training runs or waits, and makes progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from opsctl.monitoring.check import Settings, check
from opsctl.monitoring.finding import (
    Finding,
    Severity,
    critical,
    finding,
    length_words,
    since_words,
    warning,
)
from opsctl.monitoring.snapshot import Part, Snapshot, queue_order
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.failure_limit import FAILURE_LIMIT
from opsctl.run.attempts.hidden_jobs import CANNOT_SEE, describe
from opsctl.run.logs.measurements import training_left_s
from opsctl.run.logs.pulse import words_of
from opsctl.run.logs.records import WatchdogState
from opsctl.slurm.arrays import array_problem, arrays_behind, arrays_missing, count_tasks
from opsctl.slurm.durations import format_duration
from opsctl.slurm.states import Reason, State, Wait, wait_of
from opsctl.slurm.types import Job

#: training: Slurm state -> (severity, form of the watchdog's words), of what neither waits nor is held.
_STATES: dict[str, tuple[Severity, str]] = {
    State.RUNNING: (Severity.OK, "running"),
    State.CONFIGURING: (Severity.OK, "configuring"),
    State.COMPLETING: (Severity.OK, "completing"),
    State.SUSPENDED: (Severity.WARNING, "suspended"),
    State.STOPPED: (Severity.WARNING, "stopped"),
    State.REQUEUED: (Severity.OK, "requeued"),
    State.REQUEUE_FED: (Severity.OK, "requeued"),
}
#: training: reasons to wait that have words of their own.
_WAITING: dict[str, str] = {Reason.ARRAY_TASK_LIMIT: "array-limit", Reason.DEPENDENCY: "dependency"}
#: training: what to type about a job in trouble, by its form.
_TODO = {
    "held": "opsctl request release-queued; for JobHeldAdmin, ask the site",
    "never": "opsctl revise --resubmit replaces the chain; scontrol show job {job} shows the dependency",
    "cannot-start": "scontrol show job {job} shows why; then opsctl revise --resubmit",
    "suspended": "scontrol resume {job}",
}
#: must_run: between two tasks Slurm takes minutes.
_PAUSE_MOST = timedelta(minutes=30)
#: waiting: newest waits that show what is usual, how many it takes, and by how much a new one is longer than all.
_WAITS, _WAITS_LEAST, _LONGER = 40, 5, 1.5
#: waiting: less is usual on a shared cluster; with too few waits known only what is never usual is a finding.
_WAIT_LEAST_S, _WAIT_UNKNOWN_S = 24 * 3600.0, 48 * 3600.0
#: queue: a tick of the cron, and half of one more, in which `opsctl refill` puts another array behind a new live one.
_REFILLED_WITHIN = timedelta(minutes=90)
#: no_progress: attempts that the evidence names.
_ATTEMPTS_NAMED = 5

_IN_QUEUE = Part.QUEUE | Part.PROGRESS | Part.LEASE | Part.KILL_SWITCH


@check(_IN_QUEUE, can_do_without=_IN_QUEUE)  # it reports itself what it cannot see, in the watchdog's words
def training(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check that the training is running or scheduled.

    0: it runs, waits, or is finished. 1: a job behind it is held, it is suspended, or a user stopped the run with
    the kill switch or opsctl cancel. 2: it is held, waits for something that never happens, or is not in the queue;
    also if it continued after a cancel and then died. 3: Slurm does not answer or hides other users' jobs, a process
    trains it that the queue does not show, or the run was never submitted. Each line also goes into the training log.
    """
    name, checkpoint = settings.name, snapshot.checkpoint
    jobs = [_job_words(name, job, snapshot.now) for job in sorted(snapshot.jobs, key=queue_order)]
    can_continue = any(one.severity < Severity.CRITICAL for one in jobs)
    if snapshot.blind is not None:
        yield _state(Severity.UNKNOWN, name, "blind", snapshot.blind, todo="opsctl doctor")
    elif snapshot.is_finished and checkpoint is not None:  # nothing is critical any more
        samples = checkpoint.consumed_train_samples  # 0: unknown
        reached = f"iteration {checkpoint.iteration}" + (f", {samples} samples" if samples else "")
        yield _state(Severity.OK, name, "finished", reached)
        yield from (finding(Severity.OK, one.text) for one in jobs)
    elif not jobs and not snapshot.unseen:
        yield _missing(snapshot, settings)
    else:
        if snapshot.unseen and not can_continue:
            hidden = f"{CANNOT_SEE}, {describe(snapshot.unseen)} may be queued or running"
            yield _state(Severity.UNKNOWN, name, "blind", hidden, todo="opsctl attempts")
        # What is held behind a training that runs or can start is a warning, also where others may have that job.
        is_alive = can_continue or bool(snapshot.unseen)
        for one in jobs:
            if one.severity is Severity.OK:
                yield finding(Severity.OK, one.text)
            elif one.severity is Severity.CRITICAL:
                yield _of_job(Severity.WARNING if is_alive else Severity.CRITICAL, one, settings.team)
            else:
                yield _of_job(one.severity, one)


def _missing(snapshot: Snapshot, settings: Settings) -> Finding:
    """Return why nothing of the run is in the queue; a run that was never submitted is not missing."""
    name = settings.name
    unknown = snapshot.revision_problem or snapshot.checkpoint_problem
    if snapshot.writer_elsewhere is not None:
        unknown = f"{snapshot.writer_elsewhere.named()} trains it, which the queue does not show here"
    if unknown is not None:  # it may be finished
        return _state(Severity.UNKNOWN, name, "blind", unknown, todo="opsctl attempts")
    if snapshot.stopped_by:
        switch = snapshot.kill_switch
        first = "opsctl kill-switch deactivate, then " if switch is not None and switch.is_triggered else ""
        todo = f"{first}opsctl submit if nothing is queued"
        return _state(Severity.WARNING, name, "rests", snapshot.stopped_by, todo=todo)
    if snapshot.was_submitted or snapshot.checkpoint is not None:
        return critical(
            words_of(WatchdogState(name=name, state="absent")),
            "absent",
            alert=settings.team,
            evidence=("squeue has none of the run's jobs",),
            todo="opsctl attempts shows how the last one ended; then opsctl submit",
        )
    return _state(Severity.UNKNOWN, name, "unsubmitted", todo="opsctl plan, then opsctl submit")


def _state(severity: Severity, name: str, state: str, detail: str = "", todo: str = "") -> Finding:
    return finding(severity, words_of(WatchdogState(name=name, state=state, detail=detail)), todo=todo)


@dataclass(frozen=True)
class _JobWords:
    """A job in the watchdog's words: `text` for a PULSE line; for an ALERT when `severity` is not OK."""

    severity: Severity
    text: str
    form: str  # one of opsctl.run.logs.pulse.FORMS
    job: Job


def _job_words(name: str, job: Job, now: datetime) -> _JobWords:
    severity, form = _form(job)
    saying = WatchdogState(
        name=name,
        state=form,
        job_id=job.display_id,
        partition=job.partition,
        nodes=job.nodes if form == "running" else "",
        elapsed=_until(job.started_at, now) if form == "scheduled" else format_duration(job.elapsed_at_s(now)),
        # Local time as squeue prints it.
        starts_at=job.started_at.astimezone().strftime("%Y-%m-%dT%H:%M:%S") if job.started_at else "N/A",
        reason=job.reason if job.is_pending else job.state,
    )
    return _JobWords(severity, words_of(saying), form, job)


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
    """Return the time left; an expected start that has just passed is due now, not a negative time away."""
    left_s = (moment - now).total_seconds() if moment else 0
    return str(timedelta(seconds=max(0, int(left_s))))


def _of_job(severity: Severity, one: _JobWords, team: str | None = None) -> Finding:
    """Return a finding about one job, under its form and id; the rest of an array has the array's id."""
    job = one.job
    evidence = (f"squeue: {job.display_id} is {job.state}, reason {job.reason}",)
    todo = _TODO.get(one.form, "scontrol show job {job}").format(job=job.job_id)
    return finding(severity, one.text, f"{one.form} {job.job_id}", alert=team, evidence=evidence, todo=todo)


def _waits(snapshot: Snapshot) -> bool:
    """Return whether the run is in the queue and has no nodes, as far as that can be seen and is not on purpose."""
    is_stopped = snapshot.kill_switch is not None and snapshot.kill_switch.is_triggered
    is_seen = snapshot.blind is None and not snapshot.unseen and snapshot.writer_elsewhere is None
    return is_seen and bool(snapshot.jobs) and snapshot.running is None and not is_stopped and not snapshot.is_finished


_WAIT_NEEDS = _IN_QUEUE | Part.ATTEMPTS | Part.LOG


@check(_WAIT_NEEDS)
def must_run(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check that a run with `[watch] must_run` is running.

    2: it is queued and has had no nodes for half an hour. `opsctl watch training` reports a run that is not queued.
    """
    since = idle_since(snapshot)
    if not settings.watch.must_run or not _waits(snapshot):
        return
    if since is not None and snapshot.now - since < _PAUSE_MOST:
        return
    job = snapshot.behind[0]
    how_long = f" for {length_words(snapshot.now - since)}" if since else ""
    yield critical(
        f"{settings.name} is in the queue and has not run{how_long}, though nodes are set aside for it",
        alert=settings.team,
        since=since,
        evidence=(
            f"[watch] must_run = true; {job.display_id} on partition {job.partition} waits: {job.reason}",
            f"no nodes {since_words(since)}" if since else "",
        ),
        todo=f"scontrol show job {job.job_id} shows why; scontrol show reservation",
    )


@check(_WAIT_NEEDS)
def waiting(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check whether the run waits for nodes unusually long.

    1: nothing of it runs, and it has waited longer than `[watch] wait_most`; without that, longer than 1.5 times the
    longest of its last waits, and a day. A wait for a requested start time, or for the end of a maintenance, does not
    count.
    """
    # What only a person can start does not wait: `training` reports it.
    jobs = [job for job in snapshot.behind if job.is_pending and not job.is_held and not job.cannot_start]
    since = idle_since(snapshot)
    if not _waits(snapshot) or not jobs or since is None:
        return
    first = jobs[0]
    if first.reason == Reason.BEGIN_TIME or "maintenance" in first.reason.lower():
        return
    waited_s = (snapshot.now - since).total_seconds()
    most_s, why = _longest_usual(snapshot, settings)
    if waited_s > most_s:
        yield warning(
            f"{first.display_id} has waited {length_words(waited_s)} for its nodes on {first.partition}: {why}",
            since=since,
            evidence=(f"waits {since_words(since)}, Slurm's reason: {first.reason}",),
            todo=f"squeue --start -j {first.array_job_id}; sprio -j {first.array_job_id}",
        )


def _longest_usual(snapshot: Snapshot, settings: Settings) -> tuple[float, str]:
    """Return (longest usual wait in seconds, its source)."""
    most_s = settings.seconds_of("wait_most")
    if most_s is not None:
        return most_s, f"[watch] wait_most is {length_words(most_s)}"
    waits = earlier_waits_s(snapshot.attempts)[-_WAITS:]
    if len(waits) < _WAITS_LEAST:
        return _WAIT_UNKNOWN_S, (
            f"more than {length_words(_WAIT_UNKNOWN_S)}, and how long is usual here is not known yet"
        )
    longest = max(waits)
    words = f"the longest of its last {len(waits)} waits was {length_words(longest)}"
    return max(_WAIT_LEAST_S, _LONGER * longest), words


def idle_since(snapshot: Snapshot) -> datetime | None:
    """Return since when the run waits for nodes: its last attempt's end, or a later submission. None: not known.

    An attempt that is not closed yet ended after its last iteration was logged, at the earliest.
    """
    submitted = [job.submitted_at for job in snapshot.jobs if job.is_pending and job.submitted_at is not None]
    known = [min(submitted)] if submitted else []
    if snapshot.attempts:
        last = snapshot.attempts[-1]
        ends = [last.closed_at] if last.closed_at else [last.opened_at, snapshot.last_logged_at]
        known += [at for at in ends if at is not None]
    return max(known, default=None)


def earlier_waits_s(attempts: Sequence[Attempt]) -> list[float]:
    """Return the seconds that each attempt waited for nodes, oldest first: since its submission or the last end.

    Without those in which tasks had nodes and left at once, as beside a kill switch: that was no wait in the queue.
    """
    found: list[float] = []
    before: Attempt | None = None
    for attempt in attempts:
        ready = [attempt.chain_submitted_at, before.closed_at if before else None]
        known = [at for at in ready if at is not None]
        is_known = before is None or (before.closed_at is not None and not _others_came_between(before, attempt))
        if attempt.opened_at is not None and known and is_known:
            found.append(max(0.0, (attempt.opened_at - max(known)).total_seconds()))
        before = attempt
    return found


def _others_came_between(before: Attempt, after: Attempt) -> bool:
    """Return whether other tasks of the later one's array had nodes between these two, and left without an attempt."""
    if after.array_job_id is None or not after.array_task.isdecimal():
        return False
    if before.array_job_id != after.array_job_id:
        return int(after.array_task) > 1
    return before.array_task.isdecimal() and int(after.array_task) > int(before.array_task) + 1


@check(Part.QUEUE | Part.PROGRESS | Part.LOG | Part.ATTEMPTS | Part.KILL_SWITCH | Part.CRON)
def queue(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check that `[array] keep_queued` arrays are queued.

    1: there are fewer, although the scheduler that refills them is started, and an hour and a half has passed since the
    live one began. Not reported when the queued tasks reach the end of the training, or while the kill switch is
    triggered.
    """
    switch, cron = snapshot.kill_switch, snapshot.cron
    is_stopped = snapshot.is_finished or (switch is not None and switch.is_triggered)
    if snapshot.blind is not None or is_stopped or not snapshot.jobs or snapshot.unseen:
        return
    is_braked = snapshot.learned_nothing or snapshot.attempts_without_progress >= FAILURE_LIMIT
    if cron is None or not cron.is_started or is_braked or not _arrays_missing(snapshot, settings):
        return
    since = _live_since(snapshot)
    if since and snapshot.now - since < _REFILLED_WITHIN:
        return
    live, behind = snapshot.running or snapshot.behind[0], arrays_behind(snapshot.jobs)
    yield warning(
        f"{len(behind)} arrays wait behind {live.display_id}, and {settings.keep_queued} are to be kept there",
        evidence=(
            f"behind it: {', '.join(map(str, behind)) or 'nothing'}",
            f"{live.display_id}'s array comes first {since_words(since)}" if since else "",
        ),
        todo="opsctl refill prints what prevents it; opsctl cron status; or opsctl submit --after auto",
    )


def _arrays_missing(snapshot: Snapshot, settings: Settings) -> int:
    """Return how many more arrays `opsctl refill` would submit."""
    saved = snapshot.checkpoint
    left_s = training_left_s(
        snapshot.measured,
        snapshot.total_samples,
        snapshot.total_iterations,
        saved.consumed_train_samples if saved else None,
        saved.iteration if saved else None,
    )
    tasks = 0 if array_problem(settings.array) else count_tasks(settings.array)
    return arrays_missing(snapshot.jobs, settings.keep_queued, left_s, settings.time_limit_s or 0, tasks)


def _live_since(snapshot: Snapshot) -> datetime | None:
    """Return since when the array that runs, or comes first, is the first one; None: not known.

    That is when the last task of the one before it ended, not when its own next task waits for nodes or gets them.
    """
    job = snapshot.running or snapshot.behind[0]
    places = [n for n, one in enumerate(snapshot.attempts) if (one.array_job_id or one.job_id) == job.array_job_id]
    if not places and job.is_pending:
        return idle_since(snapshot)
    begun = [snapshot.attempts[place].opened_at for place in places]
    if not job.is_pending:
        begun.append(job.started_at)
    earlier = snapshot.attempts[: places[0]] if places else snapshot.attempts
    if earlier and earlier[-1].closed_at is not None:
        begun.append(max(earlier[-1].closed_at, job.submitted_at or earlier[-1].closed_at))
    return min((at for at in begun if at is not None), default=None)


@check(Part.ATTEMPTS | Part.PROGRESS)
def no_progress(snapshot: Snapshot, _settings: Settings) -> Iterator[Finding]:
    """Check that the attempts make progress.

    1: the last two in a row made no new checkpoint. Attempts that each died of another node's hardware are not counted,
    up to nine of them. 2: so many that the chain stops by itself; or a chain stopped itself because too many iterations
    in a row were skipped or had no finite loss.
    """
    row = snapshot.attempts_without_progress
    if snapshot.is_finished:
        return
    if snapshot.learned_nothing:
        last = next(one for one in reversed(snapshot.attempts) if one.reason == Ending.SKIPPED_ITERATIONS)
        yield critical(
            "the training stopped itself, its iterations were all skipped or had no finite loss; the chain stops",
            since=last.closed_at,
            evidence=(_attempt_words(last),),
            todo="opsctl logs; opsctl checkpoints rollback, or other options; then opsctl submit",
        )
    elif row >= 2:
        what = "the chain stops" if row >= FAILURE_LIMIT else f"at {FAILURE_LIMIT} the chain stops"
        ended = [one for one in snapshot.attempts if one.closed_at is not None][-row:]
        yield finding(
            Severity.CRITICAL if row >= FAILURE_LIMIT else Severity.WARNING,
            f"{row} attempts in a row without a new checkpoint, {what}: opsctl attempts",
            since=ended[0].closed_at if ended else None,
            evidence=map(_attempt_words, ended[-_ATTEMPTS_NAMED:]),
            todo="opsctl triage; opsctl attempts; opsctl logs; opsctl submit starts the count again",
        )


def _attempt_words(one: Attempt) -> str:
    cause = f", {one.verdict.words}" if one.verdict is not None and one.verdict.is_known else ""
    return f"attempt {one.number}, {one.display_id}: {one.reason}{cause}"
