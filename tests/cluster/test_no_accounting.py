"""A Slurm without accounting that has forgotten a job minutes after its end: what a run's own files still tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.installation import Installation
from opsctl.local.cluster.spec import plain
from opsctl.slurm.backends import client_for
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, guarded_folder, wait_until
from tests.cluster.trainings import Training, kill
from tests.printed_json import printed

#: Slurm looks for what to forget once in some ten seconds.
FORGETS = replace(plain("forgets"), extra_slurm_conf=("MinJobAge=2",))


@pytest.fixture
def training(slurm: Installation) -> Iterator[Training]:
    with guarded_folder() as folder, open_folder() as own:
        up = lifecycle.up(FORGETS, folder)
        training = Training(Opsctl(RunningCluster(up.folder, up.cluster, slurm), own))
        training.write(ranks=1)
        yield training


def test_an_attempt_whose_job_was_killed_and_forgotten_is_closed_and_told_by_the_runs_own_files(
    training: Training,
) -> None:
    """Its batch process is killed with -9, so that no one closes the attempt before Slurm has forgotten the job."""
    opsctl, cluster = training.opsctl, training.opsctl.cluster
    chain = training.submit("1")
    training.wait_for_iteration(12)
    job = training.recorded()[0]["job_id"]
    kill(training.batch_process())
    wait_until(lambda: not cluster.run("squeue", "-h", "-t", "all", "-j", str(chain), check=False).stdout, 150, "that")
    assert client_for(cluster.cluster).ends([job]) == {}, "neither the controller nor another source knows of it"

    status = opsctl.ok("status")
    assert "running" not in status.lower(), status
    (attempt,) = training.attempts()
    assert (attempt["closed_by"] != "job", attempt["job_id"]) == (True, job)
    assert attempt["reason"] == "unknown" and attempt["checkpoint_at_end"] >= 10, attempt
    told = printed("triage", opsctl.ok("triage", "--json"))
    assert told["cause"] == "unknown" and told["last_lines"], told
    assert opsctl.ok("queue") == ""
    assert "lost" in opsctl.ok("attempts", "--report")
