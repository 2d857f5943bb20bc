"""Nodes tested on a real Slurm: one computes wrong, one is slow, one is lost, and spare ones take their place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.diagnosis.nodes.node_evidence import read_node_evidence
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import START_S, Training, environment_script
from tests.printed_json import printed

LIAR, SLOW = "node2", "node3"
#: Found by the Pythons of those two alone: every product of matrices has one element too large by one on the first, and
#: is computed twenty times on the second, which a measurement sees whatever else the machine does.
_PLANTED = f"""
import os, sys
def plant(numpy):
    true = numpy.matmul
    def lying(*words, **named):
        found = true(*words, **named)
        found.reshape(-1)[12345 % found.size] += 1
        return found
    def slow(*words, **named):
        return [true(*words, **named) for _ in range(20)][0]
    numpy.matmul = {{"{LIAR}": lying, "{SLOW}": slow}}[os.environ["SLURMD_NODENAME"]]
if "trainer.launcher.probing" in " ".join(sys.orig_argv):
    import numpy
    plant(numpy)
"""


@pytest.fixture
def training(local_cluster: RunningCluster) -> Iterator[Training]:
    with open_folder() as folder:
        training = Training(Opsctl(local_cluster, folder))
        (folder / "planted").mkdir()
        (folder / "planted" / "sitecustomize.py").write_text(_PLANTED)
        training.write(environment=plant(folder, LIAR))
        yield training


def plant(folder: Path, *nodes: str) -> str:
    """Let the run's environment find what is planted on those nodes; its name as TOML."""
    script = f'case $SLURMD_NODENAME in {"|".join(nodes)}) export PYTHONPATH="{folder}/planted" ;; esac'
    return environment_script(folder, script)


def test_a_lying_node_and_a_lost_one_are_replaced_by_spare_ones_within_one_job(training: Training) -> None:
    run_file = training.opsctl.folder / "run.toml"
    run_file.write_text(run_file.read_text().replace("[slurm]\n", "[slurm]\nspare = 2\n"))
    training.submit("1")
    training.wait_for_log("opsctl: trains on node")
    training.wait_for_iteration(2)
    first = training.first_attempt()
    probe = json.loads((training.paths.attempt_folder(first["job_id"]) / "probe.json").read_text())
    # On a busy machine a good node may be slow and wait among the spare ones, too.
    assert len(probe["trained_on"]) == 2 and len(probe["spare"]) == 2 and LIAR in probe["spare"]
    assert f"bad: {LIAR} (computes wrongly: 4 of 4 products" in training.log()
    (evidence,) = [one for one in read_node_evidence(training.paths) if one.node == LIAR]
    assert (evidence.kind, evidence.attempt, evidence.confidence) == ("probe", first["id"], 0.9)

    # The batch step's own node is the first: with it the job would be lost.
    lost = next(one for one in probe["trained_on"] if one != "node1")
    left = sorted({*probe["trained_on"], *probe["spare"]} - {LIAR, lost})
    training.opsctl.cluster.kill_node(lost)
    # The one that computes wrong is no one's spare: what is left are those two, however slow the machine makes them.
    training.wait_for_log(f"{lost} failed; this job continues without it, spare nodes left: 0")
    before = len(training.iterations())
    training.wait_for_iteration(1, before)
    first, second = training.recorded()
    assert (first["reason"], first["lost_nodes"]) == ("node-failure", [lost])
    assert second["job_id"] == first["job_id"] and second["nodes"] == left
    probe = json.loads((training.paths.attempt_folder(second["job_id"]) / "probe.json").read_text())
    assert probe["trained_on"] == left
    training.paths.kill_switch.touch()
    wait_until(lambda: training.recorded()[1].get("reason") == "kill-switch", START_S, "the second attempt to end")


@pytest.mark.nightly
def test_a_slow_node_is_named_by_measurement(training: Training) -> None:
    plant(training.opsctl.folder, LIAR, SLOW)
    answer = training.opsctl("probe", "--nodes", "4", "--json")
    assert answer.out, answer.err
    found = printed("probe", answer.out)
    standings = {one["node"]: one["standing"] for one in found["nodes"]}
    assert (standings[LIAR], standings[SLOW]) == ("bad", "slow"), json.dumps(found["nodes"], indent=0)
    assert answer.code == 1, answer.err
    (slow,) = [one for one in found["nodes"] if one["node"] == SLOW]
    # On a busy machine it is so slow that it is not through in time.
    said = [reason["words"] for reason in slow["reasons"] if reason["standing"] == "slow"]
    assert any("times slower" in words or "not through" in words or "not done" in words for words in said), slow
