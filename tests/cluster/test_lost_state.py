"""A controller that has lost its jobs and gives their ids to other jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.installation import Installation
from opsctl.local.cluster.spec import plain
from tests.cluster.commands import Opsctl
from tests.cluster.conftest import RunningCluster, wait_until
from tests.printed_json import printed
from tests.tiny_run import write_run


@pytest.fixture
def run(slurm: Installation, cluster_folder: Path, tmp_path: Path) -> Opsctl:
    """A run in a folder of its own, on a cluster of its own."""
    up = lifecycle.up(plain("loses", nodes=2), cluster_folder)
    write_run(tmp_path)
    return Opsctl(RunningCluster(up.folder, up.cluster, slurm), tmp_path)


def test_a_job_that_got_the_recorded_id_is_never_taken_for_the_runs(run: Opsctl) -> None:
    chain = run.submit()
    run.cluster.lose_state()
    wait_until(run.cluster.all_idle, 60, "all nodes to be idle")
    last = 0
    while last < chain:
        last = run.cluster.sbatch("sleep 600", "--job-name=analysis", "--comment=for the paper")
    assert last == chain

    run.cluster.wait_for_state(chain, "RUNNING")
    assert run("watch", "training", "--no-log").code == 2
    assert [row["own"] for row in printed("queue", run.ok("queue", "--json")) if row["job_id"] == chain] == [False]
    assert run("cancel").code == 0
    assert run.cluster.job_state(chain) == "RUNNING"
    again = run.submit()
    assert again > chain
    run.ok("revise", "--resubmit")
    run.ok("cancel")
    assert run.cluster.job_state(chain) == "RUNNING"
