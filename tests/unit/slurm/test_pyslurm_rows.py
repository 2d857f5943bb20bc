"""pyslurm's values as 25.11.2 gave them, and what squeue and sinfo said of the same jobs and nodes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from opsctl.slurm.pyslurm_client import JOB_FIELDS, job_of, jobs_in_queue

RUNNING: dict[str, Any] = {
    **dict.fromkeys(JOB_FIELDS),
    "id": 118002,
    "array_id": 118001,
    "array_task_id": 1,
    "array_tasks_parallel": 1,
    "name": "wrap",
    "user_name": "root",
    "partition": "main",
    "state": "RUNNING",
    "state_reason": "None",
    "allocated_nodes": "node1",
    "num_nodes": 1,
    "run_time": 10,
    "time_limit": 60,
    "submit_time": 1795411843,
    "start_time": 1795411843,
    "end_time": 1795415443,
}
REST = {
    **RUNNING,
    **{"id": 118001, "array_task_id": None, "array_tasks_waiting": "2-5", "state": "PENDING"},
    **{"allocated_nodes": None, "run_time": 0, "time_limit": None, "start_time": None, "end_time": None},
}
FAILED = {**RUNNING, "id": 118004, "array_id": None, "array_task_id": None, "array_tasks_parallel": None}
FAILED |= {"state": "FAILED", "end_time": 1795411844}


def row(values: dict[str, Any], **changes: Any) -> list[Any]:
    return [{**values, **changes}[name] for name in JOB_FIELDS]


def test_a_running_task_is_what_squeue_says_of_it() -> None:
    job = job_of(row(RUNNING))
    assert (job.display_id, job.job_id, job.nodes, job.time_limit_s, job.elapsed_s) == (
        ("118001_1", 118002, "node1", 3600, 10)
    )
    assert job.started_at == datetime.fromtimestamp(1795411843, UTC) and (job.comment, job.dependency) == ("", "")


def test_a_folded_array_says_its_tasks_and_how_many_at_once() -> None:
    assert job_of(row(REST)).display_id == "118001_[2-5%1]"
    assert job_of(row(REST, array_tasks_parallel=None)).array_task == "2-5"


def test_of_what_has_no_limit_no_end_is_told() -> None:
    job = job_of(row(RUNNING, time_limit="UNLIMITED"))
    assert job.time_limit_s is None and job.ends_at is None


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"afterany": ["12_*(failed)", 13], "singleton": True}, "afterany:12_*(failed),afterany:13,singleton"),
        ({"afterok": [12], "afterany": [13], "singleton": False, "satisfy": "any"}, "afterok:12?afterany:13"),
        (None, ""),
    ],
)
def test_dependencies_are_written_as_squeue_writes_them(said: dict[str, Any] | None, text: str) -> None:
    assert job_of(row(REST, dependencies=said)).dependency == text


def test_a_job_that_has_ended_is_not_in_the_queue() -> None:
    rows = [row(RUNNING), row(REST), row(FAILED)]
    assert [job.job_id for job in jobs_in_queue(rows)] == [118002, 118001]
