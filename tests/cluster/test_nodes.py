"""Bad nodes of a real Slurm: kept off by people, by two crashes on one of them, and found while it is only slow."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opsctl.diagnosis.nodes.exclusion_list import own_place
from opsctl.diagnosis.nodes.node_evidence import last_samples, rank_timings, read_node_evidence
from opsctl.monitoring.checks.nodes import PARTS, SECONDS, slow_nodes
from opsctl.slurm.nodes import expand_nodes
from tests.cluster.commands import Opsctl
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import START_S, Training, environment_script, kill
from tests.printed_json import printed


@pytest.fixture
def training(session_cluster: RunningCluster, tmp_path: Path) -> Iterator[Training]:
    session_cluster.cancel_everything()
    made = Training(Opsctl(session_cluster, tmp_path))
    made.write(environment=environment_script(tmp_path))
    yield made
    session_cluster.cancel_everything()


def kept_off(cluster: RunningCluster, job: int) -> list[str]:
    """The nodes that Slurm keeps a job off."""
    text = cluster.run("scontrol", "show", "job", str(job)).stdout
    folded = next((word.partition("=")[2] for word in text.split() if word.startswith("ExcNodeList=")), "")
    return [] if folded in ("", "(null)") else expand_nodes(folded)


def wait_for_attempt(training: Training, number: int) -> None:
    """Until that many have been opened."""
    attempts = training.paths.attempts
    wait_until(lambda: attempts.exists() and len(training.recorded()) == number, START_S, f"attempt {number}")


def test_a_persons_word_reaches_what_is_queued_and_what_is_submitted_and_is_taken_back(training: Training) -> None:
    opsctl, cluster = training.opsctl, training.opsctl.cluster
    chain = training.submit("1-3%1", "--begin", "now+1hour", "--exclude", "node4")
    assert kept_off(cluster, chain) == ["node4"]
    opsctl.ok("exclude", "add", "node2", "--why", "its GPU runs hot")
    assert kept_off(cluster, chain) == ["node2", "node4"]
    (listed,) = printed("exclude list", opsctl.ok("exclude", "list", "--json"))
    assert (listed["node"], listed["why"]) == ("node2", "its GPU runs hot")
    cluster.run("scancel", str(chain))
    training.wait_until_left(chain)
    behind = training.submit("1-2%1", "--begin", "now+1hour")
    assert kept_off(cluster, behind) == ["node2"]
    opsctl.ok("exclude", "remove", "node2")
    assert kept_off(cluster, behind) == []
    refused = opsctl("exclude", "add", "node[1-3]", "--why", "all of them")
    assert refused.code == 1 and "leave 1 of the 4 nodes" in refused.last_line and "needs 2" in refused.last_line
    unknown = opsctl("exclude", "add", "node9", "--why", "gone")
    assert unknown.code == 1 and "no node node9" in unknown.last_line


@contextmanager
def limited(pid: int, share: float) -> Iterator[None]:
    """Let a process run for that share of the time only, as a CPU limit does."""
    over = threading.Event()

    def limit() -> None:
        while not over.is_set():
            for number, seconds in ((signal.SIGSTOP, 1 - share), (signal.SIGCONT, share)):
                os.kill(pid, number)
                time.sleep(seconds * 0.02)

    thread = threading.Thread(target=limit)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("finds_slow", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_ranks_killed_twice_on_a_node_make_it_suspect_but_exclude_nothing_and_a_slow_node_is_found(
    training: Training, finds_slow: bool
) -> None:
    """Timings of a slow node take half a minute of all processors, so only `make nightly` waits for them."""
    opsctl, paths = training.opsctl, training.paths
    # So that all attempts get the same two nodes.
    others = opsctl.cluster.sbatch("sleep 600", "--nodelist=node[3-4]", "--exclusive", "--time=20")
    opsctl.cluster.wait_for_state(others, "RUNNING")
    training.submit("1-3%1")
    for turn in (1, 2):
        wait_for_attempt(training, turn)
        victim = training.rank(training.recorded()[-1]["job_id"], 1)
        assert victim["node"] == "node2"
        kill(victim["pid"])
        wait_until(lambda: training.recorded()[-1].get("reason"), START_S, "the attempt's closing")
    wait_for_attempt(training, 3)
    job, (first, second) = training.recorded()[2]["job_id"], training.recorded()[2]["nodes"]
    assert second == "node2" and not own_place(paths).excluded.exists()
    suspect = opsctl("watch", "nodes")
    assert suspect.code == 1 and re.search(r"\bnode2\b.*\bsuspect\b", suspect.out), (suspect, training.recorded())

    if not finds_slow:
        return
    folder = paths.attempt_folder(job)

    def enough() -> bool:
        lines = [one for one in rank_timings(paths.output, folder) if one.rank == 0]
        return len(lines) > PARTS and sum(one.step_s for one in lines) > SECONDS + 1

    wait_until(enough, START_S, "timings of some seconds")
    undisturbed = opsctl("watch", "slow-node")
    assert (undisturbed.code, undisturbed.out) == (0, ""), undisturbed
    with limited(training.rank(job, 1)["pid"], 0.4):
        wait_until(lambda: slow_nodes(rank_timings(paths.output, folder), 5.0), START_S, "timings of a slow node")
        found = opsctl("watch", "all")
        assert re.search(rf"\b{second}\b.*\bslow\b", found.out), found
    (evidence,) = read_node_evidence(paths)
    assert (evidence.node, evidence.kind, evidence.by) == (second, "slow", "watch")
    samples = last_samples(paths.output, folder)
    assert [one.node for one in samples] == [first, second]
    assert all(0.0 < one.memory_share < 1.0 and one.cpus for one in samples)
    nodes = {one["node"]: one for one in printed("nodes show", opsctl.ok("nodes", "--json"))}
    assert [on["job_id"] for on in nodes[second]["jobs"]] == [job] and "slow" in nodes[second]["evidence"][0]
    assert nodes[second]["exclusion"] is None
