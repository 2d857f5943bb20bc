"""Stopping what gets nowhere: the pending rest of a chain, and chains behind it that would stop for the same reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opsctl.attempts.events import Attempt, brake_trips
from opsctl.slurm.types import Job


def chains_to_cancel(own: Iterable[Job], attempts: Sequence[Attempt], user: str) -> list[int]:
    """The array job ids of `user`'s pending tasks, among the run's `own` jobs, that the brake holds for as well.

    A chain that a person submitted after those attempts is not touched: for it they do not count.
    """
    chains = {
        job.array_job_id
        for job in own
        if job.is_pending
        and job.user == user
        and job.submitted_at is not None
        and brake_trips(attempts, job.submitted_at)
    }
    return sorted(chains)
