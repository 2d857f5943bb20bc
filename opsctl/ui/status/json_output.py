"""`status` for programs: stable snake_case keys, units in the names, null for what is not known. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.timestamps import to_the_second
from opsctl.diagnosis.carbon.brief import EnergySeen
from opsctl.diagnosis.goodput.brief import GoodputSeen
from opsctl.jobs.evaluation.brief import EvaluationSeen
from opsctl.monitoring.finding import printed
from opsctl.monitoring.overview import (
    Extras,
    OpenFinding,
    Overview,
    PrintedJob,
    PrintedOpenFinding,
    printed_job,
    printed_open,
)
from opsctl.monitoring.snapshot import CronSeen, Snapshot
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.table import PrintedAttempt, printed_attempt
from opsctl.run.logs.records import Measured
from opsctl.run.state.alert_log import ChannelSeen
from opsctl.run.state.chains import Cancel, resting
from opsctl.run.state.kill_switch import PrintedKillSwitch, printed_switch
from trainer.formats.json_text import Moment

_GOOD = ("done", "running")


class CronJobHealth(Struct, frozen=True, kw_only=True):
    """A job of the cron, as its last run left it."""

    name: Annotated[str, Meta(description="Its name, as `hourly/refill`.")]
    state: Annotated[str, Meta(description="State of its last run.")]
    failures: Annotated[int, Meta(description="Number of failed runs since the last good one.")]
    since: Annotated[Moment | None, Meta(description="Time of the first of them.")]
    detail: Annotated[str, Meta(description="A note about it.")]


class CronHealth(Struct, frozen=True, kw_only=True):
    """The cron that looks after the run."""

    folder: Annotated[str, Meta(description="Absolute path of its folder.")]
    started: Annotated[bool, Meta(description="True if it is started, and not stopped again.")]
    carried_by: Annotated[str, Meta(description="Its owner and its kind; empty if it is stopped.")]
    period_s: Annotated[float, Meta(description="Seconds between two ticks.")]
    heartbeat_at: Annotated[Moment | None, Meta(description="When the last tick was, by the file server.")]
    heartbeat_age_s: Annotated[float | None, Meta(description="Seconds since then.")]
    next_due_at: Annotated[Moment | None, Meta(description="When the next tick is due.")]
    jobs: Annotated[list[CronJobHealth], Meta(description="Its jobs.")]
    problem: Annotated[str | None, Meta(description="Why it cannot be seen.")]


class ChannelHealth(Struct, frozen=True, kw_only=True):
    """An alert channel, by its name without secrets."""

    name: Annotated[str, Meta(description="Its name.")]
    failing_since: Annotated[Moment | None, Meta(description="Since when it takes nothing; null while it does.")]
    detail: Annotated[str, Meta(description="Its answer.")]
    waiting: Annotated[int, Meta(description="Messages that it has not taken yet.")]
    dropped: Annotated[int, Meta(description="Recent messages that it never took, until acknowledged.")]


class AlertsHealth(Struct, frozen=True, kw_only=True):
    """The state of the run's alerts."""

    channels: Annotated[list[ChannelHealth], Meta(description="The channels that were ever used.")]
    silenced_until: Annotated[Moment | None, Meta(description="Until when nothing is sent; null while all is.")]
    silenced_by: Annotated[str | None, Meta(description="User who silenced the alerts.")]
    problem: Annotated[str | None, Meta(description="Why the records of alerts cannot be read.")]


def printed_cron(cron: CronSeen | None, now: datetime) -> CronHealth | None:
    """Return the scheduler as printed with `--json`."""
    if cron is None:
        return None
    beat = cron.heartbeat_at
    return printed(
        CronHealth,
        cron,
        started=cron.is_started,
        heartbeat_age_s=None if beat is None else (now - beat).total_seconds(),
        jobs=[printed(CronJobHealth, job) for job in cron.jobs],
    )


def printed_alerts(channels: Sequence[ChannelSeen], extras: Extras) -> AlertsHealth:
    """Return the alerts as printed with `--json`."""
    silence = extras.silence
    return AlertsHealth(
        channels=[printed(ChannelHealth, one) for one in channels],
        silenced_until=to_the_second(silence.until) if silence is not None else None,
        silenced_by=silence.by if silence is not None else None,
        problem=extras.problem or None,
    )


#: The number of printed attempts, the last ones; `opsctl attempts` prints all.
ATTEMPTS_TOLD = 3


class Progress(Struct, frozen=True, kw_only=True):
    """The progress of the training."""

    iteration: Annotated[int | None, Meta(description="The last one known to be done.")]
    total_iterations: Annotated[int | None, Meta(description="Iterations of the whole training.")]
    consumed_samples: Annotated[int | None, Meta(description="Samples consumed so far.")]
    total_samples: Annotated[int | None, Meta(description="Samples of the whole training; null when not counted so.")]
    percent: Annotated[float | None, Meta(description="How much is done, 0 to 100.")]


class Speed(Struct, frozen=True, kw_only=True):
    """The speed of the training, by the last lines of the log."""

    seconds_per_iteration: Annotated[float | None, Meta(description="Seconds of an iteration.")]
    samples_per_second: Annotated[float | None, Meta(description="Samples a second, of the whole training.")]
    tflops_per_gpu: Annotated[float | None, Meta(description="TFLOP/s of each GPU, as the trainer logs it.")]


class Loss(Struct, frozen=True, kw_only=True):
    """The last iteration in the log."""

    iteration: Annotated[int, Meta(description="Which iteration.")]
    lm_loss: Annotated[float | None, Meta(description="Its loss in nats a token; null when it is no finite number.")]
    logged_by: Annotated[Moment | None, Meta(description="When it was logged, at the latest.")]
    age_s: Annotated[float | None, Meta(description="Seconds since `logged_by`.")]
    age_is_a_minimum: Annotated[bool, Meta(description="True if it may be older, because other lines follow it.")]


class PrintedCheckpoint(Struct, frozen=True, kw_only=True):
    """The last whole checkpoint."""

    iteration: Annotated[int, Meta(description="Iterations done when it was saved.")]
    consumed_samples: Annotated[int, Meta(description="Samples consumed then.")]
    folder: Annotated[str, Meta(description="Absolute path of its folder.")]
    saved_at: Annotated[Moment | None, Meta(description="When it was whole.")]
    age_s: Annotated[float | None, Meta(description="Seconds since then.")]


class PrintedRevision(Struct, frozen=True, kw_only=True):
    """The newest revision, and how the run file differs from it."""

    name: Annotated[str, Meta(description="Its name, by which attempts and chains call it.")]
    published_at: Annotated[Moment, Meta(description="When it was published.")]
    published_by: Annotated[str, Meta(description="By whom, as user@host.")]
    differs: Annotated[list[str], Meta(description="Keys, as `table.key`, with another value in the run file.")]
    problem: Annotated[str | None, Meta(description="Why the run file could not be compared.")]


class PrintedUnseen(Struct, frozen=True, kw_only=True):
    """Another user's chain that may not have ended, and whose jobs are hidden here."""

    array_job_id: Annotated[int, Meta(description="The id that sbatch printed.")]
    user: Annotated[str, Meta(description="User who submitted it.")]


class PrintedLease(Struct, frozen=True, kw_only=True):
    """The writer of the run, by the lease in its folder."""

    number: Annotated[int, Meta(description="Grows with every taking.")]
    attempt: Annotated[str, Meta(description="Id of the attempt that it was taken for.")]
    job_id: Annotated[int | None, Meta(description="Slurm's id of its job.")]
    user: Annotated[str, Meta(description="Owner of that job.")]
    host: Annotated[str, Meta(description="The job's first node, which keeps the lease.")]
    heartbeat_age_s: Annotated[
        float | None, Meta(description="Seconds since the last heartbeat; null if it cannot be measured.")
    ]
    is_in_queue: Annotated[bool | None, Meta(description="True if the queue shows that job as the run's.")]


class Status(Struct, frozen=True, kw_only=True):
    """The state of a run. Values that only Slurm has are null while it does not answer."""

    name: Annotated[str, Meta(description="The run's name.")]
    output: Annotated[str, Meta(description="Absolute path of its output folder.")]
    at: Annotated[Moment, Meta(description="When this was so.")]
    state: Annotated[
        str,
        Meta(
            description="One of `unknown` (Slurm does not answer, or hides the jobs of others), `finished`, `absent`, "
            "`unsubmitted`, `waiting`, `held`, or Slurm's state of the task that has its nodes, in lower case."
        ),
    ]
    slurm_problem: Annotated[str | None, Meta(description="Reason why Slurm did not answer; else empty.")]
    submitted: Annotated[bool, Meta(description="True if the run was ever submitted.")]
    finished: Annotated[bool, Meta(description="True if its last checkpoint is its end.")]
    job: Annotated[PrintedJob | None, Meta(description="The task that has its nodes.")]
    queue: Annotated[list[PrintedJob] | None, Meta(description="The run's other jobs, in the order they may come.")]
    unseen: Annotated[
        list[PrintedUnseen] | None,
        Meta(description="Other users' chains that may be queued or running, if Slurm hides their jobs."),
    ]
    progress: Annotated[Progress, Meta(description="How far it is.")]
    speed: Annotated[Speed, Meta(description="The speed.")]
    left_s: Annotated[
        float | None, Meta(description="Seconds of training left at this speed; null during a standstill.")
    ]
    finishes_at: Annotated[Moment | None, Meta(description="The expected end at this speed.")]
    loss: Annotated[Loss | None, Meta(description="The last iteration in the log.")]
    checkpoint: Annotated[PrintedCheckpoint | None, Meta(description="The last whole checkpoint.")]
    checkpoint_problem: Annotated[str | None, Meta(description="Why the checkpoint of the next task is unknown.")]
    attempts: Annotated[list[PrintedAttempt], Meta(description="The last three attempts, oldest first.")]
    attempts_without_progress: Annotated[
        int,
        Meta(description="How many of this chain's last attempts, in a row, made no checkpoint; three stop the chain."),
    ]
    lease: Annotated[PrintedLease | None, Meta(description="The writer of the run; null without one.")]
    evaluation: Annotated[EvaluationSeen | None, Meta(description="Evaluations by lm-eval; null if there are none.")]
    goodput: Annotated[GoodputSeen | None, Meta(description="Goodput: the use of its time; null if unknown.")]
    carbon: Annotated[EnergySeen | None, Meta(description="Its energy so far; null if nothing was measured.")]
    kill_switch: Annotated[PrintedKillSwitch | None, Meta(description="The kill switch; null when it cannot be seen.")]
    revision: Annotated[PrintedRevision | None, Meta(description="The newest revision; null before the first submit.")]
    findings: Annotated[list[PrintedOpenFinding], Meta(description="Findings for a person, worst first.")]
    cancelled: Annotated[
        Cancel | None,
        Meta(description="The last cancel, if there was no submit since: nothing is refilled then."),
    ]
    cron: Annotated[CronHealth | None, Meta(description="The cron that looks after the run; null without one.")]
    alerts: Annotated[AlertsHealth, Meta(description="How the run's alerts do.")]


def printed_status(overview: Overview, findings: Sequence[OpenFinding], extras: Extras | None = None) -> Status:
    """Return the whole overview, and the remembered state."""
    extras = extras or Extras()
    seen, running = overview.seen, overview.seen.running
    return Status(
        name=overview.name,
        output=str(overview.output),
        at=to_the_second(seen.now),
        state=overview.state,
        slurm_problem=seen.blind,
        submitted=seen.was_submitted,
        finished=seen.is_finished,
        job=printed_job(running, True) if running else None,
        queue=None if seen.blind is not None else [printed_job(job, True) for job in seen.behind],
        unseen=None
        if seen.blind is not None
        else [PrintedUnseen(array_job_id=one.array_job_id, user=one.user) for one in seen.unseen],
        progress=printed_progress(overview),
        speed=printed_speed(seen.measured),
        left_s=overview.left_s,
        finishes_at=to_the_second(overview.finishes_at),
        loss=printed_loss(seen),
        checkpoint=printed_checkpoint(seen),
        checkpoint_problem=seen.checkpoint_problem,
        attempts=[printed_attempt(attempt, _is_seen(seen, attempt)) for attempt in seen.attempts[-ATTEMPTS_TOLD:]],
        attempts_without_progress=seen.attempts_without_progress,
        lease=_lease(seen),
        evaluation=extras.evaluation,
        goodput=extras.goodput,
        carbon=extras.energy,
        kill_switch=None if seen.kill_switch is None else printed_switch(seen.kill_switch),
        revision=_revision(seen),
        findings=[printed_open(finding) for finding in findings],
        cancelled=resting(seen.chains, extras.cancels),
        cron=printed_cron(seen.cron, seen.now),
        alerts=printed_alerts(seen.channels, extras),
    )


def _lease(seen: Snapshot) -> PrintedLease | None:
    holder = seen.lease.holder
    if holder is None:
        return None
    is_in_queue = None if seen.blind is not None else any(job.job_id == holder.job_id for job in seen.jobs)
    return printed(PrintedLease, holder, heartbeat_age_s=seen.lease.age_s, is_in_queue=is_in_queue)


def _is_seen(seen: Snapshot, attempt: Attempt) -> bool:
    """Return whether Slurm has the attempt's job."""
    return seen.blind is None and any(job.job_id == attempt.job_id for job in seen.jobs)


def printed_progress(overview: Overview) -> Progress:
    """Return the progress as printed with `--json`."""
    return Progress(
        iteration=overview.iteration,
        total_iterations=overview.iterations_in_all,
        consumed_samples=overview.samples,
        total_samples=overview.seen.total_samples,
        percent=None if overview.share is None else round(100 * overview.share, 3),
    )


def printed_speed(measured: Measured) -> Speed:
    """Return the speed as printed with `--json`."""
    return Speed(
        seconds_per_iteration=finite(measured.seconds_per_iteration),
        samples_per_second=finite(measured.samples_per_second),
        tflops_per_gpu=finite(measured.tflops),
    )


def printed_loss(seen: Snapshot) -> Loss | None:
    """Return the last iteration with a loss in the log as printed with `--json`."""
    last, at = seen.measured.newest_loss, seen.last_logged_at
    if last is None:
        return None
    return Loss(
        iteration=last.iteration,
        lm_loss=finite(last.loss),
        logged_by=to_the_second(at),
        age_s=None if at is None else (seen.now - at).total_seconds(),
        age_is_a_minimum=seen.is_loss_age_a_minimum,
    )


def finite(number: float | None) -> float | None:
    """Return `number`; None for one that JSON cannot express."""
    return number if number is not None and math.isfinite(number) else None


def printed_checkpoint(seen: Snapshot) -> PrintedCheckpoint | None:
    """Return the last complete checkpoint as printed with `--json`."""
    checkpoint, at = seen.checkpoint, seen.checkpoint_at
    if checkpoint is None:
        return None
    return PrintedCheckpoint(
        iteration=checkpoint.iteration,
        consumed_samples=checkpoint.consumed_train_samples,
        folder=str(checkpoint.folder),
        saved_at=to_the_second(at),
        age_s=None if at is None else (seen.now - at).total_seconds(),
    )


def _revision(seen: Snapshot) -> PrintedRevision | None:
    published = seen.published
    if published is None:
        return None
    at = to_the_second(published.at)
    differs = list(published.differs)
    return printed(PrintedRevision, published, published_at=at, published_by=published.by, differs=differs)
