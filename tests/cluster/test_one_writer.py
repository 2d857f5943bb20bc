"""One training has one writer, whatever a queue shows: real jobs, real ranks, and a batch process that stops."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from opsctl.jobs.runner.own_lease import WaitPolicy
from opsctl.run.config.paths import RunPaths
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import START_S, Training

_JOB = """
import sys
from pathlib import Path
from opsctl.jobs.runner.batch import run_job
from opsctl.jobs.runner.own_lease import WaitPolicy
from opsctl.run.config.paths import RunPaths
from opsctl.core.timestamps import now
from opsctl.run.config.paths import RunPaths
from opsctl.slurm.cluster import Cluster
sys.exit(run_job(RunPaths(Path({output!r})), Cluster(), now(), [], patience={patience!r}))
"""


@pytest.fixture
def training(local_cluster: RunningCluster) -> Iterator[Training]:
    with open_folder() as folder:
        training = Training(Opsctl(local_cluster, folder))
        training.write()
        yield training


def another_task(training: Training, patience: WaitPolicy) -> int:
    """A job that trains the run beside whatever the queue has of it, as one that another cluster's Slurm starts."""
    script = training.opsctl.folder / "job.py"
    script.write_text(_JOB.format(output=str(training.paths.output), patience=patience))
    body = f"export SLURM_EXPORT_ENV=ALL\nexec {sys.executable} -P {script}"
    options = ("--nodes=2", "--ntasks-per-node=1", "--gres=gpu:1", "--time=10")
    return training.opsctl.cluster.sbatch(body, *options)


def saved(training: Training) -> list[int]:
    """Return what `latest` names, as a list of none or one."""
    try:
        return [int((training.paths.checkpoints / "latest").read_text().removeprefix("global_step"))]
    except FileNotFoundError:
        return []


def lease(training: Training) -> list[tuple[str, int]]:
    lines = map(json.loads, training.paths.lease.read_text().splitlines())
    return [(line["event"], line["number"]) for line in lines]


def test_a_second_task_leaves_a_living_holder_alone_and_takes_over_from_a_silent_one_which_then_saves_nothing(
    training: Training,
) -> None:
    training.submit("1-1")
    training.wait_for_iteration(2)
    first = training.first_attempt()
    assert lease(training) == [("taken", 1)]

    second = another_task(training, WaitPolicy(alive_s=1, poll_s=0.2))
    training.wait_for_log("this job leaves", timeout_s=60)
    training.wait_until_left(second)
    held = training.recorded()[1]
    assert (held["job_id"], held["reason"], held["exit_code"]) == (second, "held", 1)
    assert f"job {first['job_id']} of " in held["note"]
    assert training.log().count("START TIME") == 1 and lease(training) == [("taken", 1)]

    before, seen = len(training.iterations()), saved(training)
    batch = training.batch_process()
    os.kill(batch, signal.SIGSTOP)
    try:
        third = another_task(training, WaitPolicy(silent_s=2, poll_s=0.2))
        taken_over = time.monotonic()
        while time.monotonic() - taken_over < START_S and len(recorded := training.recorded()) < 3:
            seen += saved(training)
        assert recorded[2]["job_id"] == third
        assert lease(training) == [("taken", 1), ("ended", 1), ("taken", 2)]

        def exit_reason() -> str:
            report = training.paths.attempt_folder(first["job_id"]) / "exit.json"
            seen.extend(saved(training))
            return str(json.loads(report.read_text())["reason"]) if report.exists() else ""

        assert wait_until(exit_reason, START_S, "the first ranks' exit") == "overtaken"
    finally:
        os.kill(batch, signal.SIGCONT)
    training.wait_for_iteration((saved(training) or [0])[0] + 10, before)
    seen += saved(training)
    training.paths.kill_switch.touch()
    training.wait_until_left(third)
    attempts = {attempt["job_id"]: attempt for attempt in training.attempts()}
    assert attempts[first["job_id"]]["reason"] == "overtaken"
    assert f"job {third} of " in attempts[first["job_id"]]["note"]
    assert (attempts[third]["reason"], attempts[third]["exit_code"]) == ("kill-switch", 0)
    assert lease(training) == [("taken", 1), ("ended", 1), ("taken", 2), ("ended", 2)]
    seen += saved(training)
    assert seen == sorted(seen), "latest went back"


def test_a_lost_run_id_hides_no_training_from_the_next_submit_and_a_moved_folder_takes_it_along(
    training: Training,
) -> None:
    training.write(ranks=1)
    chain = training.submit("1-1")
    training.wait_for_iteration(1)
    run_id = training.paths.run_id
    run_id.rename(run_id.with_name("run-id.lost"))
    refused = training.opsctl("submit", "--array", "1-1")
    assert refused.code == 1 and refused.err.count("\n") == 1
    assert f"{chain}_1 RUNNING" in refused.err and "opsctl submit --after auto" in refused.err
    behind = training.opsctl.submit("--after", "auto", "--array", "1-1")
    (waits,) = training.opsctl.cluster.run("squeue", "-h", "-j", str(behind), "-o", "%E").stdout.split()
    assert f"afterany:{chain}" in waits

    beat = training.paths.lease.stat().st_mtime
    moved = RunPaths(training.paths.output.rename(training.paths.output.with_name("moved")))
    wait_until(lambda: moved.lease.stat().st_mtime > beat, 40, "a heartbeat in the moved folder")
    moved.kill_switch.touch()
    training.wait_until_left(chain)
    events = [json.loads(line) for line in moved.attempts.read_text().splitlines()]
    assert (events[-1]["event"], events[-1]["reason"], events[-1]["exit_code"]) == ("closed", "kill-switch", 0)
    assert "END TIME:" in moved.main_log.read_text() and '"ended"' in moved.lease.read_text()
    assert not training.paths.output.exists()
