"""From launch scripts of other programs to runs that this Slurm takes, and to a chain that trains."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster
from tests.cluster.test_programs import PROGRAM
from tests.cluster.trainings import Training, environment_script
from tests.printed_json import printed
from tests.unit.run.init.test_program_launch import SCRIPTS, WILD

SCRIPT = """#!/bin/bash
#SBATCH --job-name=ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=10:00

export OMP_NUM_THREADS=1
export GLOO_SOCKET_IFNAME=lo
source env.sh
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 2 --rdzv_id $SLURM_JOB_ID --rdzv_backend c10d \\
    --rdzv_endpoint $head:29500 plain_ddp.py 40 10 0.1
"""
#: The lines that its user edits.
EDITS = {
    r"# checkpoints = .*": 'checkpoints = "saved/step-*.pt"',
    r"# progress = .*": r"progress = 'step (?P<iteration>\d+)/(?P<total>\d+) loss (?P<loss>\S+)'",
    r"# resume = .*": "resume = []",
    r"# steps = .*": "steps = 40",
    r"# channels = .*": 'channels = ["mailto://ann@lab.example.org"]',
}


def edited(run_file: Path, edits: dict[str, str]) -> int:
    """Edit the run file, and return the number of lines that this changed."""
    text = before = run_file.read_text()
    for pattern, line in edits.items():
        text = re.sub(pattern, lambda _, line=line: line, text)  # type: ignore[misc]
    run_file.write_text(text)
    return sum(old != new for old, new in zip(before.splitlines(), text.splitlines(), strict=True))


def test_runs_of_scripts_from_the_wild_are_planned_and_could_be_submitted(
    local_cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", "/tmp")
    monkeypatch.setenv("USER", "ann")
    with open_folder() as folder:
        opsctl = Opsctl(local_cluster, folder)
        for name, wild in WILD.items():
            for path, content in wild.files.items():
                (folder / path).parent.mkdir(exist_ok=True)
                (folder / path).write_text(content)
            # The folders and the partition of its cluster are this one's.
            text = re.sub(r"cd (\$REPO|/p/project/vision/clip)", f"cd {folder}", (SCRIPTS / name).read_text())
            (folder / name).write_text(re.sub(r"#SBATCH (--partition=|-p ).*\n", "", text))
            run = name.partition(".")[0]
            opsctl.ok("init", run, "--from-script", name)
            assert edited(folder / run / "run.toml", wild.edits) <= 5
            opsctl.ok("plan", run)
            assert "opsctl job run" in opsctl.ok("submit", "--run", run, "--dry-run")
            assert (folder / name).read_text() == re.sub(r"#SBATCH (--partition=|-p ).*\n", "", text)


@pytest.mark.nightly
def test_a_working_script_is_a_chain_with_kill_switch_and_alerts_after_five_edited_lines(
    local_cluster: RunningCluster,
) -> None:
    with open_folder() as folder:
        shutil.copy(PROGRAM, folder)
        environment_script(folder)
        (folder / "ddp.sbatch").write_text(SCRIPT)
        Opsctl(local_cluster, folder).ok("init", "ddp", "--from-script", "ddp.sbatch")
        training = Training(Opsctl(local_cluster, folder / "ddp"))
        assert edited(folder / "ddp" / "run.toml", EDITS) <= 5
        doctor = {one["name"]: one for one in printed("doctor", training.opsctl("doctor", "--json").out)}
        assert "missing" not in {doctor[name]["state"] for name in ("run file", "environment script", "program")}

        chain = training.submit("1-2%1")
        training.wait_for_log("step 15/")
        training.opsctl.ok("kill-switch", "trigger")
        training.wait_until_left(chain)
        first, _ = training.recorded()
        assert (first["reason"], first["checkpoint_at_end"]) == ("kill-switch", first["iteration_at_end"])
        training.opsctl.ok("kill-switch", "deactivate")
        chain = training.submit("1-2%1")
        training.wait_for_log("step 40/")
        training.wait_until_left(chain)
        assert "finished" in {one["reason"] for one in training.recorded()}
