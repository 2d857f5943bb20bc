"""Do as many arrays wait behind the live one as are to be kept there?"""

from __future__ import annotations

from datetime import datetime, timedelta

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.idle import idle_since
from opsctl.monitoring.quantities import since_words
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.attempts.array_supply import arrays_behind, arrays_missing
from opsctl.run.attempts.failure_limit import BRAKE_ATTEMPTS
from opsctl.run.logs.measurements import training_left_s
from opsctl.slurm.arrays import array_problem, count_tasks

CHECK = "queue"
HELP = """Do as many arrays wait behind the live one as `[array] keep_queued` says?

1: there are fewer, though the pseudo-cron that refills them is started, and an hour and a half has passed since the
live one began. Not at the training's end, where what is queued is enough, nor beside a triggered kill switch.
"""
#: A tick of the cron, and half of one more, in which `opsctl refill` puts another one behind a new live one.
REFILLED_WITHIN = timedelta(minutes=90)


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A warning about arrays that nobody has put behind the live one. What is held there is: `training` says that."""
    switch, cron = snapshot.kill_switch, snapshot.cron
    if snapshot.blind is not None or snapshot.is_finished or (switch is not None and switch.is_triggered):
        return []
    if cron is None or not cron.is_started or not snapshot.jobs or snapshot.unseen:
        return []
    since = _live_since(snapshot)
    is_braked = snapshot.learned_nothing or snapshot.attempts_without_progress >= BRAKE_ATTEMPTS
    if is_braked or not _missing(snapshot, settings) or (since and snapshot.now - since < REFILLED_WITHIN):
        return []
    live, behind = snapshot.running or snapshot.behind[0], arrays_behind(snapshot.jobs)
    return [
        Finding(
            CHECK,
            Severity.WARNING,
            f"{len(behind)} arrays wait behind {live.display_id}, and {settings.keep_queued} are to be kept there",
            evidence=(
                f"behind it: {', '.join(map(str, behind)) or 'nothing'}",
                *([f"{live.display_id}'s array comes first {since_words(since)}"] if since else []),
            ),
            todo="opsctl refill says what keeps it; opsctl cron status; or opsctl submit --after auto",
        )
    ]


def _missing(snapshot: Snapshot, settings: Settings) -> int:
    """How many more arrays `opsctl refill` would submit."""
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
    """Since when the array that runs, or comes first, is the first one; None: nobody can say.

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


_NEEDS = Part.QUEUE | Part.PROGRESS | Part.LOG | Part.ATTEMPTS | Part.KILL_SWITCH | Part.CRON
DETECTOR = Detector(CHECK, find, _NEEDS, HELP)
