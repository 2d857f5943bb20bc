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
command = [{start}, "plain_ddp.py", "{steps}", "10", "0.1", {more}]
launch = "{launch}"
stop = "{stop}"
grace = "0:40"
checkpoints = "saved/step-*.pt"
progress = 'step (?P<iteration>\\d+)/(?P<total>\\d+) loss (?P<loss>\\S+)'
steps = {steps}

[env]
OMP_NUM_THREADS = "1"
GLOO_SOCKET_IFNAME = "lo"
"""


def a_run_file(folder: Path, steps: int, launch: str = "torchrun", stop: str = "SIGTERM") -> str:
    start = '"torchrun"' if launch == "torchrun" else '"python"'
    more = '"hook"' if stop == "hook" else ""
    return RUN_FILE.format(
        environment=environment_script(folder), steps=steps, launch=launch, stop=stop, start=start, more=more
    )


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
        (folder / "run.toml").write_text(a_run_file(folder, steps))
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


@pytest.mark.nightly
@pytest.mark.parametrize(("launch", "stop"), [("torchrun", "hook"), ("ranks", "SIGTERM")])
def test_a_program_with_the_hook_or_without_a_launcher_is_stopped_and_resumed_without_a_trace_in_its_losses(
    local_cluster: RunningCluster, tmp_path: Path, launch: str, stop: str
) -> None:
    with open_folder() as folder:
        training, steps = Training(Opsctl(local_cluster, folder)), 60
        shutil.copy(PROGRAM, folder)
        (folder / "run.toml").write_text(a_run_file(folder, steps, launch, stop))
        chain = training.submit("1-2%1")
        training.wait_for_log("step 25/")
        training.opsctl.ok("kill-switch", "trigger")
        training.wait_until_left(chain)
        first = training.recorded()[0]
        saved = first["checkpoint_at_end"]
        assert (first["reason"], first["iteration_at_end"]) == ("kill-switch", saved)
        assert saved >= 25 and f"step {saved + 1}/" not in training.log()
        assert "has not left within" not in training.log()

        training.opsctl.ok("kill-switch", "deactivate")
        training.wait_until_left(training.submit("1"), START_S)
        last = training.recorded()[-1]
        assert (last["iteration_at_start"], last["reason"]) == (saved, "finished")
        assert losses(training.log()) == pytest.approx(uninterrupted(tmp_path / "alone", steps), rel=1e-5)


def _misbehaves(cluster: RunningCluster, folder: Path, how: str, steps: int) -> Training:
    shutil.copy(PROGRAM.with_name("misbehaving.py"), folder)
    text = a_run_file(folder, steps, "ranks", "none").replace("nodes = 2", "nodes = 1")
    text = re.sub(r"^command = .*$", f'command = ["python", "misbehaving.py", "{how}", "{steps}"]', text, flags=re.M)
    (folder / "run.toml").write_text(text + '\n[watch]\nsilent_most = "0:05"\n')
    return Training(Opsctl(cluster, folder))


@pytest.mark.parametrize(("how", "reason", "reached"), [("hangs", "hang", 12), ("halves", "failed", 10)])
def test_a_program_that_hangs_or_dies_in_a_save_continues_from_its_last_complete_checkpoint(
    local_cluster: RunningCluster, how: str, reason: str, reached: int
) -> None:
    with open_folder() as folder:
        training = _misbehaves(local_cluster, folder, how, 20)
        training.wait_until_left(training.submit("1-2%1"), START_S)
        first, second = training.recorded()[:2]
        assert (first["reason"], first["iteration_at_end"]) == (reason, reached), training.log()
        assert first["checkpoint_at_end"] == second["iteration_at_start"] == (10 if how == "hangs" else 5)
        assert second["reason"] == "finished"
        if how == "hangs" and shutil.which("py-spy", path=str(TORCHRUN.parent)):
            assert "hang" in str(first["stacks"])


@pytest.mark.nightly
def test_a_program_that_exits_with_0_and_has_not_trained_stops_its_chain_and_is_not_finished(
    local_cluster: RunningCluster,
) -> None:
    with open_folder() as folder:
        training = _misbehaves(local_cluster, folder, "quits", 20)
        training.wait_until_left(training.submit("1-5%1"), START_S)
        recorded = training.recorded()
        assert [one["reason"] for one in recorded[:3]] == ["completed"] * 3 and len(recorded) <= 4
        assert not training.opsctl.ok("status").startswith("FINISHED")


def _any_zip(folder: Path) -> Path:
    path = folder / "weights.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("weights/data.pkl", b"")
    return path


def _running(training: Training) -> int:
    return int(training.recorded()[-1]["job_id"])


def _finished(training: Training) -> bool:
    return any(one.get("reason") == "finished" for one in training.recorded())
