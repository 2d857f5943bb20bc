"""Restarts inside one job of a real Slurm: a killed rank, a hang, a lost node, and the kill switch at that moment."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import START_S, Training, alive, kill

_JOB = """
import sys
from pathlib import Path
from opsctl.core.timestamps import now
from opsctl.jobs.runner.batch import run_job
from opsctl.run.config.paths import RunPaths
from opsctl.slurm.cluster import Cluster
sys.exit(run_job(RunPaths(Path({output!r})), Cluster(), now(), [], standby_after_s=0.0))
"""
_LOSS = re.compile(r"\[default\d+\]: iteration +(\d+)/.* lm loss: ([^|]+) \|")


@pytest.fixture
def training(local_cluster: RunningCluster) -> Iterator[Training]:
    with open_folder() as folder:
        training = Training(Opsctl(local_cluster, folder))
        training.write(restarts=5)
        yield training
        for job in {one["job_id"] for one in training.recorded()}:
            for path in Path("/dev/shm").glob(f"trainer-memory.{job}.*"):  # of a node that was lost
                shutil.rmtree(path)


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
    assert second["iteration_at_start"] == first["checkpoint_at_end"]
    assert last - 10 <= first["checkpoint_at_end"] <= last, "the kill may come while iteration `last` is saved"
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


def keep_only_snapshots(training: Training) -> None:
    """Save nothing in a test's time, and keep a snapshot of every fifth iteration."""
    path = training.opsctl.folder / "run.toml"
    path.write_text(path.read_text().replace("save_interval = 10\n", "save_interval = 1000\nsnapshot_interval = 5\n"))


def wait_for_a_snapshot(job: int) -> None:
    """Wait until both nodes have both pieces of an iteration."""
    pieces = f"trainer-memory.{job}.*/*/piece.json"
    wait_until(lambda: len(list(Path("/dev/shm").glob(pieces))) >= 4, START_S, "both pieces on both nodes")


def test_a_restart_resumes_from_memory_and_the_end_of_the_job_frees_it(training: Training) -> None:
    training.write(restarts=1)
    keep_only_snapshots(training)
    chain = training.submit("1-1")
    training.wait_for_iteration(12)
    first = training.first_attempt()
    wait_for_a_snapshot(first["job_id"])
    kill(training.rank(first["job_id"], 1)["pid"])
    training.wait_for_log("START TIME:", 2)
    before = len(training.iterations())
    training.wait_for_iteration(1, after_lines=before)
    resumed = training.iterations()[before]
    assert resumed > 5 and resumed % 5 == 1 and training.recorded()[1]["iteration_at_start"] is None
    assert {iteration for iteration, seen in losses(training).items() if len(seen) > 1} == set()
    kill(training.rank(training.recorded()[1]["job_id"], 0)["pid"])
    training.wait_until_left(chain)
    assert list(Path("/dev/shm").glob(f"trainer-memory.{first['job_id']}.*")) == []


def test_a_lost_node_is_replaced_by_the_spare_and_excluded_in_the_same_job(training: Training) -> None:
    """The spare gets the lost node's piece from the copy on the other node."""
    keep_only_snapshots(training)
    # The fourth node is taken, so that the next task cannot start beside this one.
    taken = training.opsctl.cluster.sbatch("sleep 900", "--nodes=1", "--exclusive")
    training.opsctl.cluster.wait_for_state(taken, "RUNNING")
    run_file = training.opsctl.folder / "run.toml"
    run_file.write_text(run_file.read_text().replace("[slurm]\n", '[slurm]\nspare = 1\nprobe = "off"\n'))
    chain = training.submit("1-2")
    training.wait_for_iteration(2)
    first = training.first_attempt()
    wait_for_a_snapshot(first["job_id"])
    lost, spare = first["nodes"][1:]
    training.opsctl.cluster.kill_node(lost)
    training.opsctl.cluster.run("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
    training.wait_for_log("START TIME:", 2)
    before = len(training.iterations())
    training.wait_for_iteration(1, after_lines=before)
    first, second = training.recorded()
    assert (first["reason"], first["lost_nodes"]) == ("node-failure", [lost])
    assert training.iterations()[before] % 5 == 1 and training.iterations()[before] > 5
    assert second["job_id"] == first["job_id"] and training.rank(second["job_id"], 1)["node"] == spare
    (excluded,) = json.loads(training.opsctl.ok("exclude", "list", "--json"))["exclusions"]
    assert excluded["node"] == lost
    # Slurm forgets %1 for a job that goes on without a node.
    waits = training.opsctl.cluster.run("squeue", "-h", "-t", "pending", "-j", str(chain), "-o", "%E").stdout
    assert f"afterany:{first['job_id']}" in waits, "the next task waits for the end of this one"
    training.opsctl.cluster.run("scancel", str(taken))
    training.paths.kill_switch.touch()
    training.wait_until_left(chain)
    wait_until(lambda: training.recorded()[1].get("reason") == "kill-switch", START_S, "the end of the restart")


def step_of(training: Training) -> int:
    name = (training.paths.checkpoints / "latest").read_text()
    return int(name.removeprefix("global_step"))


def oldest_srun(script: Path) -> int:
    """The srun of the running training: that of the launchers on standby is younger."""
    (batch,) = [one for one in psutil.process_iter(["cmdline"]) if str(script) in (one.info["cmdline"] or ())]
    sruns = [one for one in batch.children() if one.name() == "srun"]
    return int(min(sruns, key=lambda one: one.create_time()).pid)


def keepers(pids: list[int]) -> set[int]:
    """The slurmstepds above these processes, which end them when Slurm says so."""
    return {one.pid for pid in pids for one in psutil.Process(pid).parents() if one.name() == "slurmstepd"}


def steps(training: Training, job: int) -> set[str]:
    """The steps of the job that run now, without the batch script's."""
    listed = training.opsctl.cluster.run("squeue", "-h", "-s", "-j", str(job), "-o", "%i", check=False).stdout.split()
    return {one.partition(".")[2] for one in listed if one.partition(".")[2].isdigit()}


def ranks(training: Training, job: int) -> list[int]:
    return [training.rank(job, rank)["pid"] for rank in range(2)]


def test_a_restart_uses_the_launchers_on_standby_and_ranks_that_outlive_their_srun_write_nothing(
    training: Training,
) -> None:
    training.submit("1-1", "--begin", "now+1hour")  # publishes the revision
    script = training.opsctl.folder / "job.py"
    script.write_text(_JOB.format(output=str(training.paths.output)))
    options = ("--nodes=2", "--ntasks-per-node=1", "--gres=gpu:1", "--time=10")
    job = training.opsctl.cluster.sbatch(f"export SLURM_EXPORT_ENV=ALL\nexec {sys.executable} -P {script}", *options)
    standby = training.paths.attempt_folder(job).with_name(f".standby-{job}")
    training.wait_for_iteration(12)
    wait_until(lambda: len(list(standby.glob("*.out"))) == 2, START_S, "launchers on standby")
    assert steps(training, job) == {"0", "1"}

    kill(training.rank(job, 1)["pid"])
    training.wait_for_log("START TIME:", 2)
    before = len(training.iterations())
    training.wait_for_iteration(1, after_lines=before)
    assert "1" in steps(training, job) and "0" not in steps(training, job)
    outputs = [path.read_text() for path in sorted(training.paths.attempt_folder(job).glob("*.out"))]
    assert len(outputs) == 2 and "iteration" in outputs[1]

    # As on nodes that Slurm no longer reaches: nothing ends the ranks, and they continue when the restart has saved.
    left_behind = ranks(training, job)
    stepds = keepers(left_behind)
    for pid in (*stepds, *left_behind):
        os.kill(pid, signal.SIGSTOP)
    kill(oldest_srun(script))
    training.wait_for_log("START TIME:", 3)
    before, saved = len(training.iterations()), training.recorded()[2]["iteration_at_start"]
    training.wait_for_iteration(saved + 12, after_lines=before)
    newest, folder = step_of(training), training.paths.attempt_folder(job)
    for pid in left_behind:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not any(map(alive, left_behind)), START_S, "the ranks of the attempt before to leave")
    (said,) = [path.read_text() for path in folder.parent.glob(f"{job}.*/exit.json")]
    assert json.loads(said)["reason"] == "overtaken" and not (folder / "exit.json").exists()
    assert step_of(training) >= newest, "latest went back"
    for pid in filter(alive, stepds):
        os.kill(pid, signal.SIGCONT)
    assert training.recorded()[2].get("reason") is None, "the restart goes on"
    assert lease_numbers(training) == [1, 2, 3]
    assert {iteration for iteration, seen in losses(training).items() if len(seen) > 1} == set()
    training.paths.kill_switch.touch()
    wait_until(lambda: training.recorded()[2].get("reason") == "kill-switch", START_S, "the end of the job")
    wait_until(lambda: not standby.exists(), START_S, "the folder of the launchers on standby to be gone")


def write_on_four_nodes(training: Training) -> None:
    """A run on four nodes of one rank that may continue on fewer: batches of 12 are divisible by 4 and by 3."""
    training.write(restarts=5, global_batch_size="12")
    path = training.opsctl.folder / "run.toml"
    text = path.read_text().replace("nodes = 2\n", "nodes = 4\nmin_nodes = 2\n")
    path.write_text(text)


def lose_a_node(training: Training, chain: int) -> str:
    """Kill a node of four, wait until three train, and return the lost one."""
    training.wait_for_iteration(12)
    first = training.first_attempt()
    lost = str(first["nodes"][2])
    training.opsctl.cluster.kill_node(lost)
    training.opsctl.cluster.run("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
    training.wait_for_log("START TIME:", 2)
    before, last = len(training.iterations()), training.iterations()[-1]
    training.wait_for_iteration(last + 1, after_lines=before)
    first, second = training.recorded()
    assert (first["reason"], first["lost_nodes"]) == ("node-failure", [lost])
    assert second["job_id"] == first["job_id"] and second["fewer_nodes"] == 3
    assert {training.rank(second["job_id"], rank)["node"] for rank in range(3)} == {*first["nodes"]} - {lost}
    assert f"{chain}_1 (restart 1, on 3 nodes)" in training.opsctl.ok("attempts")
    return lost


def as_numbers(losses: dict[int, set[str]]) -> dict[int, list[float]]:
    return {iteration: sorted(map(float, seen)) for iteration, seen in losses.items()}


def test_without_a_spare_a_job_continues_on_three_of_four_nodes_with_the_same_losses(training: Training) -> None:
    write_on_four_nodes(training)
    chain = training.submit("1-1")
    lose_a_node(training, chain)
    training.paths.kill_switch.touch()
    training.wait_until_left(chain)
    repeated = {iteration: seen for iteration, seen in as_numbers(losses(training)).items() if len(seen) > 1}
    for iteration, (least, most) in repeated.items():
        assert most == pytest.approx(least, rel=1e-6), iteration


@pytest.mark.nightly
def test_the_next_task_trains_on_four_nodes_again_and_all_losses_are_those_of_an_undisturbed_run(
    training: Training,
) -> None:
    write_on_four_nodes(training)
    chain = training.submit("1-2")
    lost = lose_a_node(training, chain)
    training.opsctl.cluster.start(f"slurmd-{lost}")
    training.opsctl.cluster.run("scontrol", "update", f"NodeName={lost}", "State=RESUME", check=False)
    wait_until(lambda: training.opsctl.cluster.node_states()[lost].startswith("idle"), START_S, "the node to be back")
    training.opsctl.ok("exclude", "remove", lost)
    training.opsctl.ok("request", "stop", "--why", "four nodes are there again")
    training.wait_for_log("START TIME:", 3)
    before, last = len(training.iterations()), training.iterations()[-1]
    training.wait_for_iteration(last + 10, after_lines=before)
    third = training.recorded()[2]
    assert (
        third["fewer_nodes"] is None and len({training.rank(third["job_id"], rank)["node"] for rank in range(4)}) == 4
    )
    training.paths.kill_switch.touch()
    training.wait_until_left(chain)
    disturbed = as_numbers(losses(training))
    end = max(disturbed)
    assert set(disturbed) == set(range(1, end + 1))
    with open_folder() as folder:
        without = Training(Opsctl(training.opsctl.cluster, folder))
        write_on_four_nodes(without)
        chain = without.submit("1-1", "--", "--exit-samples", str(12 * end))
        without.wait_for_iteration(end)
        without.wait_until_left(chain)
        expected = as_numbers(losses(without))
    for iteration, seen in disturbed.items():
        assert seen == [pytest.approx(expected[iteration][0], rel=1e-6)] * len(seen), iteration
