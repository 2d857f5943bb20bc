"""The sentences about changes that hold for every backend on a real Slurm; each makes its own jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opsctl.core.errors import SlurmError, SlurmUnreachable
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.types import Job
from tests.cluster.conftest import RunningCluster, wait_until

Change = Callable[[RunningCluster, SlurmClient], None]
_HEAD = "#!/bin/bash\n#SBATCH --output=/dev/null --chdir=/\n"


def a_submitted_job_is_in_the_queue_under_its_id(cluster: RunningCluster, slurm: SlurmClient) -> None:
    job = slurm.submit(f"{_HEAD}#SBATCH --job-name=mine --comment='a b' --time=5 --hold\n")
    (found,) = slurm.jobs(job_ids=[job])
    assert (found.job_id, found.name, found.comment, found.time_limit_s) == (job, "mine", "a b", 300)
    slurm.cancel([job])
    wait_until(lambda: slurm.jobs(job_ids=[job]) == [], 20, "the job to go")
    assert slurm.ends([job])[job].state == "CANCELLED"


def a_task_what_is_pending_and_a_whole_array_are_cancelled_apart(cluster: RunningCluster, slurm: SlurmClient) -> None:
    job = slurm.submit(f"{_HEAD}#SBATCH --array=1-3%1\nsleep 600\n")
    wait_until(lambda: _shown(slurm.jobs(job_ids=[job])) == ["1 RUNNING", "2-3%1 PENDING"], 20, "the first task")
    slurm.cancel([f"{job}_3"])
    wait_until(lambda: _shown(slurm.jobs(job_ids=[job])) == ["1 RUNNING", "2%1 PENDING"], 20, "the third to go")
    slurm.cancel([job], pending_only=True)
    wait_until(lambda: _shown(slurm.jobs(job_ids=[job])) == ["1 RUNNING"], 20, "what is pending to go")
    slurm.cancel([job])
    wait_until(lambda: slurm.jobs(job_ids=[job]) == [], 30, "the array to go")


def tasks_are_held_until_they_are_released(cluster: RunningCluster, slurm: SlurmClient) -> None:
    job = slurm.submit(f"{_HEAD}#SBATCH --array=1-3%1 --begin=now+1day\n")
    slurm.hold([f"{job}_[2-3]"])
    some = slurm.jobs(job_ids=[job])
    # A newer squeue keeps them in one row, with both reasons.
    assert any("JobHeld" in one.reason for one in some) and not all(one.is_held for one in some)
    slurm.hold([f"{job}_1"])
    assert all(one.is_held for one in slurm.jobs(job_ids=[job]))
    slurm.release([f"{job}_[1-3]"])
    assert not any("JobHeld" in one.reason for one in slurm.jobs(job_ids=[job]))
    slurm.cancel([job])


def a_job_is_requeued_under_its_id_where_that_is_allowed(cluster: RunningCluster, slurm: SlurmClient) -> None:
    job = slurm.submit(f"{_HEAD}#SBATCH --no-requeue\nsleep 600\n")
    wait_until(lambda: _shown(slurm.jobs(job_ids=[job])) == [" RUNNING"], 20, "the job to run")
    with pytest.raises(SlurmError, match=r"(?i)disabled|not permitted"):
        slurm.requeue(job)
    slurm.allow_requeue(job, True)
    slurm.requeue(job)
    wait_until(lambda: _shown(slurm.jobs(job_ids=[job])) == [" PENDING"], 30, "the job to be back in the queue")
    assert slurm.ends([job]) == {}
    slurm.cancel([job])


def a_stopped_controller_is_unreachable_and_no_empty_queue(cluster: RunningCluster, slurm: SlurmClient) -> None:
    hasty = client_for(cluster.cluster, 1.0)  # the same backend: it is the environment's to say
    with cluster.stopped("slurmctld"):
        with pytest.raises(SlurmUnreachable, match=r"the state of its jobs is unknown"):
            hasty.jobs()
        with pytest.raises(SlurmUnreachable, match=r"no time left|no answer"):
            hasty.nodes()


def _shown(jobs: list[Job]) -> list[str]:
    return sorted(f"{job.array_task} {job.state}" for job in jobs)


CHANGES: tuple[Change, ...] = (
    a_submitted_job_is_in_the_queue_under_its_id,
    a_task_what_is_pending_and_a_whole_array_are_cancelled_apart,
    tasks_are_held_until_they_are_released,
    a_job_is_requeued_under_its_id_where_that_is_allowed,
    a_stopped_controller_is_unreachable_and_no_empty_queue,
)
