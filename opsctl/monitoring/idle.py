"""Since when nothing of the run has nodes, and how long its tasks have waited so far. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.attempts.events import Attempt


def idle_since(snapshot: Snapshot) -> datetime | None:
    """Since when the run waits for nodes: its last attempt's end, or a later submission. None: nobody can say.

    An attempt that nobody has closed yet ended after its last iteration was logged, at the earliest.
    """
    submitted = [job.submitted_at for job in snapshot.jobs if job.is_pending and job.submitted_at is not None]
    known = [min(submitted)] if submitted else []
    if snapshot.attempts:
        last = snapshot.attempts[-1]
        ends = [last.closed_at] if last.closed_at else [last.opened_at, snapshot.last_logged_at]
        known += [at for at in ends if at is not None]
    return max(known, default=None)


def earlier_waits_s(attempts: Sequence[Attempt]) -> list[float]:
    """Seconds that each attempt waited for its nodes, oldest first: since its submission or the one before it ended.

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
    """Whether other tasks of the later one's array had nodes between these two, and left without an attempt."""
    if after.array_job_id is None or not after.array_task.isdecimal():
        return False
    if before.array_job_id != after.array_job_id:
        return int(after.array_task) > 1
    return before.array_task.isdecimal() and int(after.array_task) > int(before.array_task) + 1
