"""Restarts inside one job of a real Slurm: a killed rank, a hang, a lost node, and the kill switch at that moment."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import START_S, Training, kill

_LOSS = re.compile(r"\[default\d+\]: iteration +(\d+)/.* lm loss: ([^|]+) \|")


@pytest.fixture
def training(local_cluster: RunningCluster) -> Iterator[Training]:
    with open_folder() as folder:
        training = Training(Opsctl(local_cluster, folder))
        training.write(restarts=5)
        yield training


def losses(training: Training) -> dict[int, set[str]]:
    """Iteration -> its losses as printed, by every attempt that trained it."""
    found: dict[int, set[str]] = {}
    for iteration, loss in _LOSS.findall(training.log()):
        found.setdefault(int(iteration), set()).add(loss)
    return found


def lease_numbers(training: Training) -> list[int]:
    lines = map(json.loads, training.paths.lease.read_text().splitlines())
    return [line["number"] for line in lines if line["event"] == "taken"]


def test_the_job_restarts_after_a_killed_rank_and_a_hang_and_leaves_when_the_kill_switch_comes_meanwhile(
    training: Training,
) -> None:
    with (training.opsctl.folder / "run.toml").open("a") as file:
        file.write('\n[watch]\nsilent_most = "0:12"\n')
    chain = training.submit("1-1")
    training.wait_for_iteration(14)
    kill(training.rank(training.first_attempt()["job_id"], 1)["pid"])
    training.wait_for_log("START TIME:", 2)
    before = len(training.iterations())
    last = training.iterations()[-1]
    training.wait_for_iteration(last + 1, after_lines=before)

    first, second = training.recorded()
    assert (first["reason"], first["signal"], second["restart"]) == ("signal", 9, 1)
    assert second["job_id"] == first["job_id"] and second["nodes"] == first["nodes"]
    assert second["iteration_at_start"] == first["checkpoint_at_end"] == 10 * (last // 10)
    assert {iteration for iteration, seen in losses(training).items() if len(seen) > 1} == set()
    assert set(range(1, last + 2)) <= losses(training).keys()

    os.kill(training.rank(second["job_id"], 1)["pid"], signal.SIGSTOP)
    training.wait_for_log("START TIME:", 3)
    assert training.recorded()[1]["reason"] == "hang"
    before = len(training.iterations())
    training.wait_for_iteration(1, after_lines=before)

    third = training.recorded()[2]
    batch = training.batch_process()
    os.kill(batch, signal.SIGSTOP)
    try:
        kill(training.rank(third["job_id"], 0)["pid"])
        training.paths.kill_switch.touch()
    finally:
        os.kill(batch, signal.SIGCONT)
    training.wait_until_left(chain)
    assert [one["restart"] for one in training.recorded()] == [0, 1, 2]
    assert training.log().count("START TIME:") == training.log().count("END TIME:") == 3
    assert lease_numbers(training) == [1, 2, 3]
    assert len({seen for seen in map(frozenset, losses(training).values()) if len(seen) > 1}) == 0


def test_a_lost_node_is_replaced_by_the_spare_and_excluded_in_the_same_job(training: Training) -> None:
    run_file = training.opsctl.folder / "run.toml"
    run_file.write_text(run_file.read_text().replace("[slurm]\n", '[slurm]\nspare = 1\nprobe = "off"\n'))
    chain = training.submit("1-1")
    training.wait_for_iteration(2)
    first = training.first_attempt()
    lost, spare = first["nodes"][1:]
    training.opsctl.cluster.kill_node(lost)
    training.opsctl.cluster.run("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
    training.wait_for_log("START TIME:", 2)
    before = len(training.iterations())
    training.wait_for_iteration(1, after_lines=before)
    first, second = training.recorded()
    assert (first["reason"], first["lost_nodes"]) == ("node-failure", [lost])
    assert second["job_id"] == first["job_id"] and training.rank(second["job_id"], 1)["node"] == spare
    (excluded,) = json.loads(training.opsctl.ok("exclude", "list", "--json"))["exclusions"]
    assert excluded["node"] == lost
    training.paths.kill_switch.touch()
    training.wait_until_left(chain)
    wait_until(lambda: training.recorded()[1].get("reason") == "kill-switch", START_S, "the end of the restart")
