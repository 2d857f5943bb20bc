"""Nodes tested on a real Slurm: one computes wrong, one is slow, one is lost, and spare ones take their place."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.records.node_evidence import read_node_evidence
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import Training, environment_script
from tests.printed_json import printed

LIAR, SLOW = "node2", "node3"
#: Found by the Python of one node alone: every product of matrices there has one element too large by one.
_LYING = """
import sys
def lie(numpy):
    true = numpy.matmul
    def matmul(*words, **named):
        found = true(*words, **named)
        found.reshape(-1)[12345 % found.size] += 1
        return found
    numpy.matmul = matmul
if "trainer.probing" in " ".join(sys.orig_argv):
    import numpy
    lie(numpy)
"""


@pytest.fixture
def training(local_cluster: RunningCluster) -> Iterator[Training]:
    with open_folder() as folder:
        training = Training(Opsctl(local_cluster, folder))
        (folder / "lies").mkdir()
        (folder / "lies" / "sitecustomize.py").write_text(_LYING)
        script = f'if [[ $SLURMD_NODENAME == {LIAR} ]]; then export PYTHONPATH="{folder}/lies"; fi'
        training.write(environment=environment_script(folder, script))
        yield training


def test_a_lying_node_and_a_lost_one_are_replaced_by_spare_ones_within_one_job(training: Training) -> None:
    run_file = training.opsctl.folder / "run.toml"
    run_file.write_text(run_file.read_text().replace("[slurm]\n", "[slurm]\nspare = 2\n"))
    training.submit("1")
    training.wait_for_log("opsctl: trains on node", timeout_s=240)
    training.wait_for_iteration(2)
    (first,) = training.recorded()
    probe = json.loads((training.paths.attempt_folder(first["job_id"]) / "probe.json").read_text())
    # On a busy machine a good node may be late and wait among the spare ones, too.
    assert len(probe["trained_on"]) == 2 and len(probe["spare"]) == 2 and LIAR in probe["spare"]
    assert f"bad: {LIAR} (computes wrong: 4 of 4 products" in training.log()
    (evidence,) = read_node_evidence(training.paths)
    assert (evidence.node, evidence.kind, evidence.attempt) == (LIAR, "probe", first["id"])

    # The batch step's own node is the first: with it the job would be lost.
    lost, before = next(one for one in probe["trained_on"] if one != "node1"), len(training.iterations())
    left = sorted({*probe["trained_on"], *probe["spare"]} - {LIAR, lost})
    training.opsctl.cluster.kill_node(lost)
    training.wait_for_log("this job goes on without, spare nodes left: 1", timeout_s=240)
    training.wait_for_log(f"opsctl: trains on {' '.join(left)}", timeout_s=240)
    training.wait_for_iteration(1, before)
    first, second = training.recorded()
    assert (first["reason"], first["lost_nodes"]) == ("node-failure", [lost])
    assert second["job_id"] == first["job_id"] and lost not in second["nodes"]
    probe = json.loads((training.paths.attempt_folder(second["job_id"]) / "probe.json").read_text())
    assert probe["trained_on"] == left
    training.paths.kill_switch.touch()
    wait_until(lambda: training.recorded()[1].get("reason") == "kill-switch", 120, "the second attempt to end")


def test_a_slow_node_is_named_by_measurement(training: Training) -> None:
    with slowed(SLOW):
        answer = training.opsctl("probe", "--nodes", "4", "--json")
    assert answer.out, answer.err
    found = printed("probe", answer.out)
    bad = [one["node"] for one in found["nodes"] if one["standing"] == "bad"]
    assert bad == [LIAR, SLOW], json.dumps(found["nodes"], indent=0)
    assert answer.code == 1, answer.err
    (slow,) = [one for one in found["nodes"] if one["node"] == SLOW]
    # On a busy machine it is so slow that it is not through in time.
    said = [reason["words"] for reason in slow["reasons"] if reason["standing"] == "bad"]
    assert any("times slower" in words or "not through" in words or "not done" in words for words in said), slow


@contextlib.contextmanager
def slowed(node: str, share: float = 0.08, period_s: float = 0.1) -> Iterator[None]:
    """What tests `node` runs for `share` of the time only, as under a limit of its processors."""
    is_over = threading.Event()

    def limit() -> None:
        looked, pids = 0.0, []
        while not is_over.is_set():
            if time.monotonic() - looked > 0.1:
                looked, pids = time.monotonic(), _probing_on(node)
            _signal(pids, signal.SIGSTOP)
            is_over.wait(period_s * (1 - share))
            _signal(pids, signal.SIGCONT)
            time.sleep(period_s * share)

    thread = threading.Thread(target=limit)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _probing_on(node: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_one = b"trainer.probing" in (entry / "cmdline").read_bytes()
            if is_one and f"SLURMD_NODENAME={node}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found
