"""Slurm's answer and the run's own records of the same job: the newer one counts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec import structs

from opsctl.monitoring.snapshot import Snapshot, with_newer_records
from opsctl.run.attempts.events import Attempt
from tests.unit.monitoring.jobs import NOW, RUNNING

ASKED_AT = NOW - timedelta(seconds=40)
JOB = structs.replace(RUNNING, started_at=NOW - timedelta(minutes=30))


def attempt(closed_s_ago: float | None, **changes: object) -> Attempt:
    closed = None if closed_s_ago is None else NOW - timedelta(seconds=closed_s_ago)
    fields = {"number": 1, "id": "a", "job_id": JOB.job_id, "opened_at": JOB.started_at, "closed_at": closed}
    return Attempt(**{**fields, "reason": None if closed is None else "finished", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempts", "state"),
    [
        ([attempt(10)], "COMPLETING"),  # ended after Slurm was asked
        ([attempt(60)], "RUNNING"),  # before: Slurm knew it, and the job goes on
        ([attempt(None)], "RUNNING"),
        ([attempt(10), attempt(None, number=2, id="b")], "RUNNING"),  # the next one in the same allocation
        ([attempt(10, job_id=JOB.job_id + 1)], "RUNNING"),
        ([], "RUNNING"),
    ],
)
def test_a_job_whose_attempt_has_ended_since_slurm_was_asked_runs_no_more(attempts: list[Attempt], state: str) -> None:
    seen = Snapshot(NOW, jobs=(JOB,), attempts=tuple(attempts), queue_asked_at=ASKED_AT, queue_age_s=40.0)
    assert [job.state for job in with_newer_records(seen).jobs] == [state]
