"""A training whose job Slurm preempts with PreemptMode=REQUEUE, though its jobs are not to be requeued."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.installation import Installation
from opsctl.local.cluster.spec import plain
from opsctl.slurm.backends import client_for
from tests.cluster.commands import Opsctl
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import Training

#: The jobs of one partition make way for those of the other one, and have a while for it.
PREEMPTION = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "PartitionName=cheap Nodes=node[1-2] PriorityTier=1 PreemptMode=REQUEUE GraceTime=60 MaxTime=INFINITE State=UP",
    "PartitionName=dear Nodes=node[1-2] PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE State=UP",
)


@pytest.fixture
def training(slurm: Installation, cluster_folder: Path, tmp_path: Path) -> Training:
    """A training in the partition that makes way."""
    up = lifecycle.up(replace(plain("preempts", nodes=2), extra_slurm_conf=PREEMPTION), cluster_folder)
    made = Training(Opsctl(RunningCluster(up.folder, up.cluster, slurm), tmp_path))
    made.write(ranks=1)
    file = tmp_path / "run.toml"
    file.write_text(file.read_text().replace("[slurm]\n", '[slurm]\npartition = "cheap"\n'))
    return made


def test_an_attempt_that_leaves_in_the_grace_time_is_recorded_as_preempted(training: Training) -> None:
    cluster = training.opsctl.cluster
    chain = training.submit("1-2%1")
    training.wait_for_iteration(3)
    dear = cluster.sbatch("sleep 600", "--partition=dear", "--exclusive", "--nodes=2")
    wait_until(lambda: training.recorded()[0].get("reason"), 120, "the attempt to end")
    attempt = training.attempts()[0]
    assert attempt["reason"] == "preempted"
    assert "preempted" in attempt["note"]
    client = client_for(cluster.cluster)
    assert set(client.preempted([attempt["job_id"], dear])) == {attempt["job_id"]}
    assert any(job.array_job_id == chain and job.is_pending for job in client.jobs()), "the next task goes on"
