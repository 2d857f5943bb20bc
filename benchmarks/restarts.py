"""From the death of a rank to the next iteration: a restart in the job compared with torchrun's and ft_launcher's.

    python -m benchmarks.restarts [--rounds N] [--ft-launcher PATH]

One of 8 ranks on 4 local nodes is killed with -9, for each candidate in turn: a job of opsctl with launchers on
standby, one without, `torchrun --max-restarts` and ft_launcher (nvidia-resiliency-ext). All train the same tiny model
with our trainer. torchrun and ft_launcher run without Slurm, one launcher per node on this machine. Their workers get a
rendezvous store of their own, because torchrun's shared one makes restarts fail. Run it by hand: it takes minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from opsctl.core.tcp_ports import is_free
from opsctl.jobs.runner.launch import free_port
from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.spec import plain
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.revisions import newest_for_task
from tests.tiny_run import write_run

NODES, RANKS, VICTIM, KILLS, SAVE_INTERVAL = 4, 2, 5, 2, 10
LONGEST_S, POLL_S = 240.0, 0.02
_ITERATION = re.compile(rb"iteration +(\d+)/ *\d+ \|")
_JOB = """\
import sys
from pathlib import Path
from opsctl.core.timestamps import now
from opsctl.jobs.runner.batch import run_job
from opsctl.run.config.paths import RunPaths
from opsctl.slurm.cluster import Cluster
sys.exit(run_job(RunPaths(Path({output!r})), Cluster(), now(), [], standby_after_s={standby_after_s}))
"""
_OPSCTL = (sys.executable, "-P", "-m", "opsctl")


def main(words: Sequence[str] = ()) -> dict[str, object]:
    """Measure, print the seconds of each restart, and return them by candidate."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restarts")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ft-launcher", default="ft_launcher", help="the command of nvidia-resiliency-ext")
    asked = parser.parse_args(words)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="ocr", dir="/tmp") as name, local_cluster(Path(name) / "c") as environment:
        for number in range(asked.rounds):
            for candidate in ("standby", "new step", "torchrun", "ft_launcher"):
                folder = Path(name) / f"{candidate.replace(' ', '-')}{number}"
                run = prepared(folder, environment)
                if candidate in ("standby", "new step"):
                    begun = opsctl_job(folder, environment, 1.0 if candidate == "standby" else 1e9)
                else:
                    launcher = asked.ft_launcher if candidate == "ft_launcher" else beside_python("torchrun")
                    begun = launchers(folder, run, launcher, candidate == "ft_launcher")
                with begun as log:
                    found.setdefault(candidate, []).extend(restarts(log, folder, candidate == "standby"))
                print(f"{candidate:12} {' '.join(f'{one:6.1f}' for one in found[candidate])} s", flush=True)
    for candidate, seconds in found.items():
        print(f"{candidate:12} median {statistics.median(seconds):.1f} s of {len(seconds)}")
    return dict(found)


def restarts(log: Path, folder: Path, waits_for_standby: bool) -> Iterator[float]:
    """Kill a rank, and give the seconds until the next iteration is complete; several times in one training."""
    offset = 0
    for _ in range(KILLS):
        until(lambda: any(one >= 14 for one in iterations(log, offset)), "iterations")  # noqa: B023
        if waits_for_standby:
            until(lambda: standing_by(folder) == NODES, "launchers on standby")
        victim = pid_of_rank(VICTIM, folder)
        # Well between two saves, so that the restart repeats iterations.
        until(lambda: iterations(log, 0)[-1] % SAVE_INTERVAL in range(2, 6), "iteration between two saves")
        offset = log.stat().st_size
        last, began = iterations(log, 0, offset)[-1], time.monotonic()
        os.kill(victim, signal.SIGKILL)
        until(lambda: any(one <= last for one in iterations(log, offset)), "an iteration after the restart")  # noqa: B023
        yield time.monotonic() - began


def iterations(log: Path, begin: int, end: int | None = None) -> list[int]:
    """Return the numbers of the iterations in this part of the log."""
    try:
        return [int(one) for one in _ITERATION.findall(log.read_bytes()[begin:end])]
    except FileNotFoundError:
        return []


def until(condition: object, what: str) -> None:
    """Wait until `condition()` is true. Raises TimeoutError."""
    deadline = time.monotonic() + LONGEST_S
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {LONGEST_S:.0f} s")
        time.sleep(POLL_S)


def processes_of(folder: Path) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Give the processes whose command line names the folder, with their environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(folder) in word for word in process.cmdline()):
                yield process, process.environ()


def pid_of_rank(rank: int, folder: Path) -> int:
    """Return the process of a rank: forked by our launcher, which writes a map, or started by torchrun's."""
    maps = sorted((folder / "output" / "logs" / "attempts").glob(f"[0-9]*/ranks-{rank // RANKS}.json"))
    newest = [path for path in maps if "." not in path.parent.name]
    if newest:
        return int(re.findall(r'"pid": ?(\d+)', newest[0].read_text())[rank % RANKS])
    return next(int(one.pid) for one, own in processes_of(folder) if own.get("RANK") == str(rank))


def standing_by(folder: Path) -> int:
    """Return how many launchers have imported everything and wait for a line."""
    waiting: int = 0
    for process, _ in processes_of(folder):
        with contextlib.suppress(psutil.Error, OSError):
            if "--standby" in process.cmdline() and process.name().startswith("python"):
                waiting += int(process.cpu_percent(0.2) < 1)
    return waiting


@contextlib.contextmanager
def local_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Give the environment of a cluster of four nodes."""
    folder.mkdir()
    up = lifecycle.up(plain("bench"), folder)
    try:
        yield {**up.cluster.environment(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    finally:
        lifecycle.down(folder)


def prepared(folder: Path, environment: dict[str, str]) -> RunPaths:
    """Write a run and publish its revision."""
    path = write_run(folder, nodes=NODES, train_samples=400_000, time="20:00", slurm="spare = 0")
    path.write_text(path.read_text().replace("[trainer]\n", "[trainer]\nlog_interval = 1\n"))
    words = (*_OPSCTL, "submit", "--array", "1-1", "--begin", "now+1hour")
    subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True, timeout=LONGEST_S)
    return RunPaths(folder / "output")


@contextlib.contextmanager
def opsctl_job(folder: Path, environment: dict[str, str], standby_after_s: float) -> Iterator[Path]:
    """Train in a job; give the log."""
    script = folder / "job.py"
    script.write_text(_JOB.format(output=str(folder / "output"), standby_after_s=standby_after_s))
    options = [f"--nodes={NODES}", "--ntasks-per-node=1", f"--gres=gpu:{RANKS}", "--time=20", "--output=/dev/null"]
    words = ["sbatch", "--parsable", *options, "--chdir=/"]
    body = f"#!/bin/bash\nexport SLURM_EXPORT_ENV=ALL\nexec {sys.executable} -P {script}\n"
    done = subprocess.run(words, input=body, env=environment, capture_output=True, text=True, check=True, timeout=60)
    job = done.stdout.split(";")[0].strip()
    try:
        yield folder / "output" / "logs" / "main_log.txt"
    finally:
        (folder / "output" / "kill-switch").touch()
        is_gone = ["squeue", "-h", "-j", job]
        until(lambda: not subprocess.run(is_gone, env=environment, capture_output=True, timeout=60).stdout, "end")


@contextlib.contextmanager
def launchers(folder: Path, run: RunPaths, launcher: str, is_ft: bool) -> Iterator[Path]:
    """Train under one launcher per node; give the log."""
    revision, _ = newest_for_task(run, only_owners=False)
    assert revision is not None
    port = free_port(os.getpid() % 1000, is_free)
    words = [launcher, "--nnodes", str(NODES), "--nproc-per-node", str(RANKS), "--max-restarts", "20"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", folder.name]
    words += ["--ignore-missing-fault-tol-cfg"] if is_ft else []
    words += ["-m", "trainer.pretrain_gpt", *revision.trainer_arguments]
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment = {**os.environ, **own, "DS_ACCELERATOR": "cpu", "PYTHONUNBUFFERED": "1"}
    (run.checkpoints).mkdir(parents=True, exist_ok=True)
    log = folder / "launchers.out"
    with log.open("wb") as out:
        started = [
            subprocess.Popen(words, stdout=out, stderr=out, env=environment, cwd=folder, start_new_session=True)
            for _ in range(NODES)
        ]
    try:
        yield log
    finally:
        run.kill_switch.touch()
        for one in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(30)
        for process, _ in list(processes_of(folder)):
            with contextlib.suppress(psutil.Error):
                process.kill()
        for one in started:
            one.wait(30)


def beside_python(command: str) -> str:
    """Return the path of a command of this environment."""
    return str(Path(sys.executable).parent / command)


if __name__ == "__main__":
    main(sys.argv[1:])
