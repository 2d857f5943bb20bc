"""Ranks, batch processes and nodes that die under a real training."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import START_S, Training, alive, kill


@pytest.fixture
def training(local_cluster: RunningCluster) -> Iterator[Training]:
    with open_folder() as folder:
        training = Training(Opsctl(local_cluster, folder))
        training.write()
        yield training


def test_a_killed_rank_ends_the_step_is_named_and_the_next_task_resumes(training: Training) -> None:
    """Then kill -9 of the next task's batch process itself, which the task after it closes."""
    training.submit("1-3%1")
    training.wait_for_iteration(12)  # the checkpoint of iteration 10 is whole
    first = training.first_attempt()
    victim = training.rank(first["job_id"], 1)
    kill(victim["pid"])
    training.wait_for_log("END TIME:")
    before = len(training.iterations())
    (first, *_) = training.attempts()
    assert (first["reason"], first["exit_code"], first["signal"]) == ("signal", 137, 9)
    assert (first["first_failure"]["rank"], first["first_failure"]["node"]) == (1, first["nodes"][1])
    assert first["checkpoint_at_end"] % 10 == 0 and first["iteration_at_end"] >= 12
    assert all(path.startswith(str(training.paths.attempt_folder(first["job_id"]))) for path in first["error_files"])
    assert re.search(rf"rank 1\b.*{first['nodes'][1]}\b.*SIGKILL", training.opsctl.ok("attempts"))

    saved = first["checkpoint_at_end"]
    training.wait_for_log("START TIME:", 2)
    second = training.recorded()[1]
    assert second["iteration_at_start"] == saved
    wait_until(lambda: saved + 1 in training.iterations()[before:], START_S, "the iteration after the one saved")
    ranks = [training.rank(second["job_id"], rank)["pid"] for rank in range(2)]
    kill(training.batch_process())
    wait_until(lambda: not any(map(alive, ranks)), 60, "the ranks to be gone")
    training.wait_for_log("START TIME:", 3)
    second = training.recorded()[1]
    assert (second["reason"], second["exit_code"], second["signal"]) == ("signal", 137, 9)
    assert second["closed_by"] != "job" and len(second["ranks"]) == 2
    training.paths.kill_switch.touch()
    training.wait_for_log("END TIME:", 2)


@pytest.mark.parametrize("marked_by", ["administrator", pytest.param("slurm", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("what", ["slurmd", "node"])
def test_a_lost_node_closes_the_attempt_and_the_next_task_trains_elsewhere(
    training: Training, what: str, marked_by: str
) -> None:
    """slurmd alone: the batch process on its node lives on and sees it. The whole node: another process closes.

    Slurm marks a node as down when it has not answered for SlurmdTimeout; an administrator does so at once.
    """
    training.submit("1-2%1")
    training.wait_for_iteration(2)
    first = training.first_attempt()
    lost = first["nodes"][0]
    if what == "slurmd":
        training.opsctl.cluster.kill(f"slurmd-{lost}")
    else:
        training.opsctl.cluster.kill_node(lost)
    if marked_by == "administrator":
        training.opsctl.cluster.run("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
    training.wait_for_log("START TIME:", 2)
    wait_until(lambda: training.attempts()[0]["reason"], START_S, "the first attempt to be closed")
    first, second = training.recorded()
    assert first["reason"] == "node-failure"
    assert lost not in second["nodes"]
    if what == "node":
        assert first["closed_by"] != "job" and "NODE_FAIL" in first["note"]
    else:
        assert first["lost_nodes"] == [lost]
    training.paths.kill_switch.touch()
    wait_until(lambda: training.recorded()[1].get("reason"), START_S, "the second attempt to end")
