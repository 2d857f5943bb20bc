"""Do as many arrays wait behind the live one as are to be kept there?"""

from __future__ import annotations

from datetime import datetime, timedelta

from opsctl.slurm.types import Job
from opsctl.watch.detector import Detector, Settings
from opsctl.watch.finding import Finding, Severity
from opsctl.watch.snapshot import Part, Snapshot
from opsctl.watch.wording import since_words

CHECK = "queue"
HELP = """Do as many arrays wait behind the live one as `[array] keep_queued` says?

1: there are fewer, though the pseudo-cron that refills them is started, and an hour and a half has passed since the
live one began. Not at the training's end, where what is queued is enough, nor beside a triggered kill switch.
"""
#: A tick of the cron, and half of one more, in which `opsctl refill` puts another one behind a new live one.
REFILLED_WITHIN = timedelta(minutes=90)


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A warning about arrays that nobody has put behind the live one."""
    switch, cron = snapshot.kill_switch, snapshot.cron
    if snapshot.blind is not None or snapshot.is_finished or (switch is not None and switch.is_triggered):
        return []
    if cron is None or not cron.is_started or not settings.keep_queued or not snapshot.jobs or snapshot.unseen:
        return []
    behind, missing = _behind(snapshot), settings.keep_queued - len(_behind(snapshot))
    since = _live_since(snapshot)
    if missing <= 0 or (since is not None and snapshot.now - since < REFILLED_WITHIN):
        return []
    live = snapshot.running or snapshot.behind[0]
    return [
        Finding(
            CHECK,
            Severity.WARNING,
            f"{len(behind)} arrays wait behind {live.display_id}, and {settings.keep_queued} are to be kept there",
            evidence=(
                f"behind it: {', '.join(map(str, behind)) or 'nothing'}",
                *([f"{live.display_id}'s array is the live one {since_words(since)}"] if since else []),
            ),
            todo="opsctl refill says what keeps it; opsctl cron status; or opsctl submit --after auto",
        )
    ]


def _behind(snapshot: Snapshot) -> tuple[int, ...]:
    """Arrays of which nothing has started and something can, behind the one that has or comes first."""
    can_start = [job for job in snapshot.jobs if not job.is_held and not job.cannot_start]
    started = {job.array_job_id for job in can_start if not job.is_pending}
    waiting = sorted({job.array_job_id for job in can_start} - started)
    return tuple(waiting if started else waiting[1:])


def _live_since(snapshot: Snapshot) -> datetime | None:
    """When the first task of the array that runs began; None while nothing runs."""
    job: Job | None = snapshot.running
    if job is None:
        return None
    begun = [one.opened_at for one in snapshot.attempts if (one.array_job_id or one.job_id) == job.array_job_id]
    known = [at for at in (*begun, job.started_at) if at is not None]
    return min(known, default=None)


_NEEDS = Part.QUEUE | Part.PROGRESS | Part.LOG | Part.ATTEMPTS | Part.KILL_SWITCH | Part.CRON
DETECTOR = Detector(CHECK, find, _NEEDS, HELP)
