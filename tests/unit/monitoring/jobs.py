"""Jobs as Slurm lists them, for the tests of this room."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec import structs

from opsctl.slurm.types import Job

NOW = datetime(2026, 3, 1, 10, 0, 0, tzinfo=UTC)
RUNNING = Job(
    job_id=13,
    array_job_id=12,
    array_task="1",
    name="renamed by somebody",
    user="ana",
    partition="gpu_p5",
    state="RUNNING",
    reason="None",
    nodes="node[1-4]",
    node_count=4,
    elapsed_s=7805,
    time_limit_s=72000,
    submitted_at=NOW - timedelta(hours=3),
    started_at=NOW - timedelta(seconds=7805),
    ends_at=NOW - timedelta(seconds=7805) + timedelta(hours=20),
    dependency="",
    comment="opsctl run=r submit=s",
    work_dir="/",
)


def pending(
    reason: str, job_id: int = 12, task: str = "2-3%1", starts_at: datetime | None = None, comment: str = ""
) -> Job:
    """A waiting rest of an array."""
    return structs.replace(
        RUNNING,
        job_id=job_id,
        array_job_id=job_id,
        array_task=task,
        state="PENDING",
        reason=reason,
        nodes="",
        elapsed_s=0,
        started_at=starts_at,
        ends_at=None,
        comment=comment or RUNNING.comment,
    )


WAITING_FOR_TASK = pending("JobArrayTaskLimit")
WAITING_FOR_CHAIN = pending("Dependency", 20, "1-3%1")
HELD = pending("JobHeldUser", 30, "1-3%1")
NEVER = pending("DependencyNeverSatisfied", 40, "1-3%1")
