"""A chain of a program that does not know opsctl: stopped, killed and resumed, with the losses of a whole run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import START_S, Training, environment_script, kill
from tests.printed_json import printed

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "plain_ddp.py"
TORCHRUN = Path(sys.executable).with_name("torchrun")
_STEP = re.compile(r"step (\d+)/\d+ loss (\S+)")
RUN_FILE = """
[run]
name = "ddp"
environment = {environment}

[slurm]
nodes = 2
gpus_per_node = 2
time = "10:00"
exit_margin = "1:00"

[program]
command = ["torchrun", "plain_ddp.py", "{steps}", "10", "0.1"]
stop = "SIGTERM"
grace = "0:40"
checkpoints = "saved/step-*.pt"
progress = 'step (?P<iteration>\\d+)/(?P<total>\\d+) loss (?P<loss>\\S+)'
steps = {steps}

[env]
OMP_NUM_THREADS = "1"
GLOO_SOCKET_IFNAME = "lo"
"""


def losses(log: str) -> dict[int, float]:
    """Step -> the last loss that was printed of it."""
    return {int(step): float(loss) for step, loss in _STEP.findall(log)}


def uninterrupted(folder: Path, steps: int) -> dict[int, float]:
    """The losses of the same program on as many ranks, never stopped."""
    folder.mkdir()
    shutil.copy(PROGRAM, folder)
    words = [str(TORCHRUN), "--standalone", "--nproc-per-node", "4", PROGRAM.name, str(steps), "1000", "0"]
    own = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(words, cwd=folder, env=own, capture_output=True, text=True, timeout=START_S, check=True)
    return losses(done.stdout)


def test_a_plain_torchrun_script_is_stopped_killed_and_resumed_without_a_trace_in_its_losses(
    local_cluster: RunningCluster, tmp_path: Path
) -> None:
    with open_folder() as folder:
        training, steps = Training(Opsctl(local_cluster, folder)), 90
        shutil.copy(PROGRAM, folder)
        (folder / "run.toml").write_text(RUN_FILE.format(environment=environment_script(folder), steps=steps))
        stale = folder / "saved" / f"step-{steps}.pt"
        stale.parent.mkdir()
        shutil.copy(_any_zip(tmp_path), stale)
        assert "existing" in training.opsctl("submit", "--array", "1-2%1").err  # not taken for a finished run
        run_file = folder / "run.toml"
        run_file.write_text(run_file.read_text().replace("steps =", 'existing = "aside"\nsteps ='))
        chain = training.submit("1-2%1")

        training.wait_for_log("step 25/")
        assert training.opsctl("kill-switch", "trigger").code == 0
        training.wait_until_left(chain)
        first, _ = training.recorded()
        saved = first["checkpoint_at_end"]
        assert (first["reason"], first["exit_code"], first["iteration_at_end"]) == ("kill-switch", 0, saved)
        assert saved >= 25 and f"step {saved + 1}/" not in training.log()

        training.opsctl.ok("kill-switch", "deactivate")
        chain = training.submit("1-3%1")
        training.wait_for_log(f"step {saved + 25}/")
        kill(training.rank(_running(training), 3)["pid"])
        wait_until(lambda: _finished(training), START_S, "the end of the training")
        training.wait_until_left(chain)

        third, fourth = (one for one in training.recorded()[2:] if one["iteration_at_end"] != steps or one["ranks"])
        assert (third["reason"], third["first_failure"]["rank"], third["first_failure"]["signal"]) == ("signal", 3, 9)
        assert third["iteration_at_end"] >= saved + 25 > third["checkpoint_at_end"]
        assert fourth["iteration_at_start"] == third["checkpoint_at_end"] and fourth["reason"] == "finished"
        # Some CPUs round by a tensor's address, so a process that loads its weights may differ in the last bits.
        assert losses(training.log()) == pytest.approx(uninterrupted(tmp_path / "alone", steps), rel=1e-5)
        listed = printed("checkpoints list", training.opsctl.ok("checkpoints", "list", "--json"))
        assert listed[-1]["iteration"] == steps and all(one["complete"] for one in listed)


def _any_zip(folder: Path) -> Path:
    path = folder / "weights.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("weights/data.pkl", b"")
    return path


def _running(training: Training) -> int:
    return int(training.recorded()[-1]["job_id"])


def _finished(training: Training) -> bool:
    return any(one.get("reason") == "finished" for one in training.recorded())
