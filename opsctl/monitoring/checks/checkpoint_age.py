"""Does a training that runs also save?"""

from __future__ import annotations

from datetime import datetime, timedelta

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.quantities import length_words, seconds_of
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.logs.measurements import START_MOST_S
from opsctl.slurm.states import State

CHECK = "checkpoint_age"
HELP = """Does a training that runs also save?

1: its last checkpoint is older than `[watch] checkpoint_most`; without that, than what the iterations between two of
them take here, with an evaluation, two saves and a tenth more; or the newest save beside it failed. 2: twice as old;
or the newest save was refused because weights, optimizer states or the loss are not finite. Only the time that it has
run counts.
"""
_MORE, _SAVES = 1.1, 2
_LEAST = timedelta(minutes=5)


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A warning about a running task whose next checkpoint does not come, then critical; one about a failed save."""
    job, failed = snapshot.running, snapshot.measured.failed_save
    if snapshot.is_finished:
        return []
    if job is None or job.state != State.RUNNING or job.started_at is None:
        # A run that has just ended because of it is still in danger: the next start may meet the same.
        return _failed(snapshot) if failed is not None and failed.not_finite else []
    return [*_late(snapshot, settings, job.started_at), *_failed(snapshot)]


def _failed(snapshot: Snapshot) -> list[Finding]:
    failed, last = snapshot.measured.failed_save, snapshot.checkpoint
    if failed is None or (last is not None and last.iteration >= failed.iteration):
        return []
    stands = f"iteration {last.iteration}'s is the last one" if last else "there is none yet"
    if failed.not_finite:
        return [
            Finding(
                CHECK,
                Severity.CRITICAL,
                f"the state of iteration {failed.iteration} was not saved: {failed.why}; {stands}",
                subject=f"iteration {failed.iteration}",
                evidence=("a start resumes from the last finite checkpoint, and trains the iterations after it again",),
                todo="opsctl triage; if it repeats: skip the data (train_range_to_skip) or lower the learning rate",
            )
        ]
    return [
        Finding(
            CHECK,
            Severity.WARNING,
            f"the checkpoint of iteration {failed.iteration} could not be written: {failed.why}; {stands}",
            subject=f"iteration {failed.iteration}",
            evidence=("the next save holds up the training until it is written, and ends it where it fails too",),
            todo="is there space: opsctl watch filesystem; once there is: opsctl request save",
        )
    ]


def _late(snapshot: Snapshot, settings: Settings, started_at: datetime) -> list[Finding]:
    limit = _limit(snapshot, settings)
    if limit is None or snapshot.checkpoint_problem is not None:
        return []
    last, saved_at = snapshot.checkpoint, snapshot.checkpoint_at
    is_of_this_task = saved_at is not None and saved_at > started_at
    since = saved_at if saved_at is not None and is_of_this_task else started_at
    if not is_of_this_task:
        limit += timedelta(seconds=START_MOST_S)
    age = snapshot.now - since
    if age < limit:
        return []
    logged = snapshot.measured.last_iteration
    named = f"the last checkpoint is iteration {last.iteration}'s" if last else "there is no checkpoint yet"
    return [
        Finding(
            CHECK,
            Severity.CRITICAL if age >= 2 * limit else Severity.WARNING,
            f"{named}, and it has trained for {length_words(age)} since without another one",
            since=since + limit,
            evidence=(
                f"more than {length_words(limit)} is too long here",
                *([f"iteration {logged.iteration} is logged"] if logged else []),
                *([settings.saves.words()] if settings.saves else []),
            ),
            todo="opsctl logs says why a save failed; opsctl request save; is there space: opsctl watch filesystem",
        )
    ]


def _limit(snapshot: Snapshot, settings: Settings) -> timedelta | None:
    """How long it may train without a checkpoint; None: nobody knows."""
    told_s = seconds_of(settings.watch, "checkpoint_most")
    if told_s is not None:
        return timedelta(seconds=told_s)
    measured, expect = snapshot.measured, settings.expect
    iteration_s = measured.seconds_per_iteration or expect.seconds_per_iteration
    reached = snapshot.checkpoint.iteration if snapshot.checkpoint else 0
    iterations = settings.saves.longest_wait_after(reached) if settings.saves else None
    if not iteration_s or iterations is None:
        return None
    evaluation_s = measured.longest_evaluation_seconds or expect.evaluation_seconds or 0.0
    save_s = measured.longest_save_seconds or expect.save_seconds or 0.0
    return _LEAST + timedelta(seconds=_MORE * iterations * iteration_s + evaluation_s + _SAVES * save_s)


def _blind(snapshot: Snapshot) -> str:
    return snapshot.checkpoint_problem or ""


DETECTOR = Detector(CHECK, find, Part.QUEUE | Part.PROGRESS | Part.LOG, HELP, blind=_blind)
