"""Which jobs in the queue are this very run's, by Slurm's word alone: files could say what others write. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.jobs.runner.allocation import Allocation
from opsctl.run.config.job_comment import parse_comment
from opsctl.slurm.types import Job


def of_this_run(jobs: Sequence[Job], own: Allocation) -> list[Job]:
    """Those of the job's account, run and working folder; none where it is not among `jobs` itself."""
    this = next((job for job in jobs if job.job_id == own.job_id), None)
    comment = parse_comment(this.comment) if this is not None else None
    if this is None or comment is None:
        return []
    return [
        job
        for job in jobs
        if job.user == own.user
        and job.work_dir == this.work_dir
        and (said := parse_comment(job.comment)) is not None
        and said.run_id == comment.run_id
    ]
