"""Three array tasks of real programs, as their packages ship them: after each end the losses are those of a whole run.

One task loses a rank, one reaches its time limit and one meets the kill switch. The packages are those of this Python,
and of the virtual environments whose `bin` folders OPSCTL_TEST_PROGRAMS names, separated by colons.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import START_S, Training, kill
from tests.printed_json import printed
from tests.programs import litgpt_data

PROGRAMS = Path(litgpt_data.__file__).parent
#: Seconds to the end of a task whose time limit is lowered: Slurm checks limits every 30 s.
_AHEAD_S, _MARGIN_S = 75, 120
#: The longest wait for a start of a program, which imports much.
_PATIENCE_S = 900


@dataclass(frozen=True)
class Case:
    """A program under test. {steps}, {every} and {seconds} in its words are those of the chain."""

    needs: tuple[str, ...]  # packages
    command: Sequence[str]
    alone: Sequence[str]  # the same program on as many ranks, without Slurm
    table: str  # more of `[program]`
    nodes: int = 2
    steps: int = 400
    every: int = 10
    seconds: float = 0.2  # of a step
    saves: bool = False  # when it is asked to leave
    line: str = r"step (\d+)/\d+ loss ([-\d.e]+)"
    files: Callable[[Path], object] | None = None
    environment: str = ""

    def words(self, command: Sequence[str], seconds: float) -> list[str]:
        values = {"steps": str(self.steps), "every": str(self.every), "seconds": str(seconds)}
        return [re.sub(r"\{(\w+)\}", lambda name: values.get(name[1], name[0]), word) for word in command]

    def printed(self, log: str) -> list[tuple[int, float]]:
        return [(int(step), float(loss)) for step, loss in re.findall(self.line, log)]


TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
STEPS = ("{steps}", "{every}", "{seconds}")
TRAINER = (
    *("hf_trainer.py", "--output_dir", "out", "--max_steps", "{steps}", "--save_steps", "{every}"),
    *("--logging_steps", "1", "--step_seconds", "{seconds}", "--enable_jit_checkpoint", "True", "--report_to", "none"),
    *("--use_cpu", "--ddp_backend", "gloo"),
)
LIGHTNING = ("lightning_fit.py", "--steps", "{steps}", "--save_every", "{every}", "--step_seconds", "{seconds}")
LITGPT = ("litgpt", "pretrain", "--config", "cfg.yaml", "--out_dir", "out")
OWN_FILES = """
checkpoints = "saved/step-*.pt"
progress = 'step (?P<iteration>\\d+)/(?P<total>\\d+) loss (?P<loss>\\S+)'
stop = "SIGTERM"
"""
CASES = {
    "torchrun": Case(
        (), ("torchrun", "plain_ddp.py", *STEPS), (*TORCHRUN, "plain_ddp.py", *STEPS), OWN_FILES, saves=True
    ),
    "single-file": Case(
        (),
        ("torchrun", "plain_ddp.py", *STEPS, "single"),
        (*TORCHRUN, "plain_ddp.py", *STEPS),
        OWN_FILES.replace("step-*.pt", "ckpt.pt"),
        saves=True,
    ),
    "srun": Case(
        (),
        ("python", "plain_ddp.py", *STEPS),
        (*TORCHRUN, "plain_ddp.py", *STEPS),
        OWN_FILES + 'launch = "ranks"',
        saves=True,
    ),
    "transformers": Case(
        ("transformers", "accelerate"),
        ("torchrun", *TRAINER),
        (*TORCHRUN, *TRAINER),
        'kind = "transformers"',
        saves=True,
    ),
    "accelerate": Case(
        ("transformers", "accelerate"),
        ("accelerate", "launch", "--multi_gpu", *TRAINER),
        (*TORCHRUN, *TRAINER),
        'kind = "transformers"\nlaunch = "accelerate"',
        saves=True,
    ),
    "lightning": Case(
        ("lightning", "torchdata"), ("torchrun", *LIGHTNING), (*TORCHRUN, *LIGHTNING), 'kind = "lightning"', every=25
    ),
    "litgpt": Case(
        ("litgpt",),
        LITGPT,
        LITGPT,
        'kind = "litgpt"\ncheckpoints = "out/step-*"',
        nodes=1,
        steps=1000,
        every=25,
        line=r"iter \d+ step (\d+) \| loss train: ([\d.]+)",
        files=litgpt_data.write,
        environment="export TORCHDYNAMO_DISABLE=1",
    ),
    "deepspeed": Case(
        ("deepspeed",),
        ("torchrun", "deepspeed_engine.py", *STEPS),
        (*TORCHRUN, "deepspeed_engine.py", *STEPS),
        """
checkpoints = "saved/global_step*"
complete = ["mp_rank_00_model_states.pt", "*zero_pp_rank_0_*_optim_states.pt", "*zero_pp_rank_1_*_optim_states.pt"]
progress = 'step (?P<iteration>\\d+)/(?P<total>\\d+) loss (?P<loss>\\S+)'
stop = "none"
""",
        environment="export DS_ACCELERATOR=cpu",
    ),
}
RUN_FILE = """
[run]
name = "program"
environment = "env.sh"

[slurm]
nodes = {nodes}
gpus_per_node = 1
time = "60:00"
exit_margin = "{margin}"
restarts = 0

[program]
command = {command}
grace = "0:40"
steps = {steps}
{table}
"""


@functools.cache
def python_with(packages: Sequence[str]) -> Path | None:
    """The folder of a Python's programs that has the packages, of this one or of OPSCTL_TEST_PROGRAMS."""
    named = filter(None, os.environ.get("OPSCTL_TEST_PROGRAMS", "").split(":"))
    find = "import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    for folder in (Path(sys.executable).parent, *map(Path, named)):
        if not subprocess.run([folder / "python", "-c", find, *packages], timeout=START_S).returncode:
            return folder
    return None


def prepare(case: Case, folder: Path) -> None:
    """Write the program, its environment and what it reads."""
    found = python_with(case.needs)
    if found is None:
        pytest.skip(f"not installed: {', '.join(case.needs)}; name their environment in OPSCTL_TEST_PROGRAMS")
    for script in PROGRAMS.glob("*.py"):
        shutil.copy(script, folder)
    lines = (f'export PATH="{found}:$PATH"', "export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo", case.environment)
    (folder / "env.sh").write_text("\n".join(lines) + "\n")
    if case.files:
        case.files(folder)


def uninterrupted(case: Case, folder: Path) -> dict[int, float]:
    """The losses of the same program on as many ranks, never stopped: step -> loss."""
    folder.mkdir()
    prepare(case, folder)
    litgpt_data.set_length(folder, case.steps, case.every)
    command = ["bash", "-c", 'source env.sh; exec "$@"', "-", *case.words(case.alone, 0.0)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(case.printed(done.stdout))


def lower_the_limit(cluster: RunningCluster, job_id: int) -> None:
    """Have the task's time limit come in one to two minutes, within the margin in which it is warned."""
    started = cluster.run("squeue", "-h", "-j", str(job_id), "-o", "%S").stdout.split()[0]
    here = datetime.now().astimezone()
    seconds = (here - datetime.fromisoformat(started).replace(tzinfo=here.tzinfo)).total_seconds() + _AHEAD_S
    cluster.run("scontrol", "update", f"JobId={job_id}", f"TimeLimit={int(seconds // 60) + 1}")


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_three_tasks_that_lose_a_rank_reach_the_limit_and_meet_the_kill_switch_train_what_one_run_trains(
    local_cluster: RunningCluster, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    faulthandler.cancel_dump_traceback_later()  # each wait has a limit
    with open_folder() as folder:
        training = Training(Opsctl(local_cluster, folder))
        prepare(case, folder)
        litgpt_data.set_length(folder, case.steps, case.every)
        command = json.dumps(case.words(case.command, case.seconds))
        margin = f"{_MARGIN_S // 60}:00"
        text = RUN_FILE.format(nodes=case.nodes, margin=margin, command=command, steps=case.steps, table=case.table)
        (folder / "run.toml").write_text(text)
        chain = training.submit("1-3%1")

        def trained(more: int) -> None:
            """Wait until the newest attempt has trained `more` steps."""
            goal = len(case.printed(training.log())) + more
            wait_until(lambda: len(case.printed(training.log())) >= goal, _PATIENCE_S, f"{more} more steps")

        def task(number: int) -> int:
            """Wait for the record of an attempt, and return its job."""
            wait_until(lambda: _number_of_attempts(training) >= number, _PATIENCE_S, f"attempt {number}")
            return int(training.recorded()[number - 1]["job_id"])

        first = task(1)
        trained(2 * case.every + 3)
        kill(training.rank(first, case.nodes - 1)["pid"])
        second = task(2)
        trained(case.every + 3)
        lower_the_limit(local_cluster, second)
        task(3)
        trained(case.every + 3)
        training.opsctl.ok("kill-switch", "trigger")
        training.wait_until_left(chain, _PATIENCE_S)
        training.opsctl.ok("kill-switch", "deactivate")
        rest = training.submit("1-2%1")
        wait_until(lambda: training.recorded()[-1].get("reason") == "finished", _PATIENCE_S, "the end of the training")
        training.wait_until_left(rest, _PATIENCE_S)

        attempts = _of_tasks(training)
        shown = [(one["reason"], one["iteration_at_start"], one["iteration_at_end"]) for one in attempts]
        print(name, shown, [one["checkpoint_at_end"] for one in attempts])
        reasons = [one["reason"] for one in attempts]
        assert reasons == ["signal", "exit-duration", "kill-switch", "finished"], (training.recorded(), training.log())
        failed = attempts[0]["first_failure"]
        assert (failed["rank"], failed["signal"]) == (case.nodes - 1, 9)
        log = case.printed(training.log())
        # Each attempt starts where the one before has saved, and reports exactly the steps that it has trained.
        for before, after in pairwise(attempts):
            assert after["iteration_at_start"] == before["checkpoint_at_end"]
        trained_steps = [range((start or 0) + 1, end + 1) for _, start, end in shown]
        steps, lines = Counter(step for steps in trained_steps for step in steps), Counter(step for step, _ in log)
        # transformers' bar shows a step before the program prints its line: kill -9 can fall between the two.
        assert not lines - steps and sum((steps - lines).values()) <= 1
        assert set(steps - lines) <= {attempts[0]["iteration_at_end"]}
        if case.saves:
            # transformers trains one step after its save; ranks that see the signal a step apart do not save.
            assert any(one["checkpoint_at_end"] >= one["iteration_at_end"] - 1 for one in attempts[1:3])
        # Some CPUs round by a tensor's address, so a process that loads its weights may differ in the last bits.
        assert dict(log) == pytest.approx(uninterrupted(case, tmp_path / "alone"), rel=1e-4)
        listed = printed("checkpoints list", training.opsctl.ok("checkpoints", "list", "--json"))
        assert listed[-1]["iteration"] == case.steps and all(one["complete"] for one in listed)


def _number_of_attempts(training: Training) -> int:
    return len(training.recorded()) if training.paths.attempts.exists() else 0


def _of_tasks(training: Training) -> list[dict[str, Any]]:
    """The attempts that have started a program, without tasks that left at once."""
    return [one for one in training.recorded() if one.get("ranks")]
