"""A real federation: two clusters under one slurmdbd, each with its part of the job ids."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from opsctl.core.errors import SlurmError, SlurmMissing
from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.installation import Installation
from opsctl.local.cluster.spec import plain
from opsctl.slurm.backends import client_for
from opsctl.slurm.commands import FIRST_OF_A_FEDERATION
from tests.cluster.conftest import RunningCluster, guarded_folder, wait_until


@pytest.fixture
def federation(slurm: Installation) -> Iterator[tuple[RunningCluster, RunningCluster]]:
    """Two clusters of a node each. The second one asks the first one's slurmdbd, so they share a munge key."""
    with guarded_folder() as folder, guarded_folder() as beside:
        first, second = plain("fed-a", nodes=1, accounting=True), plain("fed-b", nodes=1)
        try:
            up = lifecycle.up(first, folder)
        except SlurmMissing as error:
            pytest.skip(str(error))
        one = RunningCluster(up.folder, up.cluster, slurm)
        (beside / "munge").mkdir(mode=0o711)
        shutil.copy2(folder / "munge" / "munge.key", beside / "munge")
        lines = (folder / "slurm.conf").read_text().splitlines()
        accounting = tuple(line for line in lines if line.startswith("AccountingStorage"))
        one.run("sacctmgr", "-i", "add", "cluster", second.slurm_name)
        up = lifecycle.up(replace(second, extra_slurm_conf=accounting), beside)
        other = RunningCluster(up.folder, up.cluster, slurm)
        clusters = f"clusters={first.slurm_name},{second.slurm_name}"
        one.run("sacctmgr", "-i", "add", "federation", "both", clusters)
        synced = "Synced:Yes"
        wait_until(lambda: synced in one.run("scontrol", "show", "federation").stdout, 60, "the federation")
        yield one, other


@pytest.mark.nightly
def test_a_federations_job_is_cancelled_and_refused_by_name_on_either_of_its_clusters(
    federation: tuple[RunningCluster, RunningCluster],
) -> None:
    for cluster in federation:
        client = client_for(cluster.cluster, 60)
        with pytest.raises(SlurmError, match=r"job \d+ .*federation") as refused:
            client.submit("#!/bin/bash\n#SBATCH --output=/dev/null --time=5\nsleep 60\n")
        job = int(re.findall(r"job (\d+)", str(refused.value))[0])
        assert job > FIRST_OF_A_FEDERATION
        wait_until(functools.partial(_has_ended, cluster, job), 60, "its end")
        # The twin on the other cluster, of the job before, ends when the clusters have told each other.
        wait_until(functools.partial(_is_idle, cluster), 60, "the end of all jobs")
        client = client_for(cluster.cluster, 60)  # a new deadline: the waits may have used up the first one's
        assert [node.name for node in client.nodes()] == ["node1"]
        ends = client.ends([job])
        assert {end.state for end in ends.values()} <= {"CANCELLED", "REVOKED"}


def _has_ended(cluster: RunningCluster, job: int) -> bool:
    return cluster.job_state(job) in ("CANCELLED", "REVOKED", "")


def _is_idle(cluster: RunningCluster) -> bool:
    return not any(job.is_pending or job.is_running for job in client_for(cluster.cluster, 60).jobs())
