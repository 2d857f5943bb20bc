"""Measure the time of commands: `opsctl --help` compared with Python and click, `opsctl status` with squeue.

Each pair is measured in turn, so that a busy machine slows both alike; medians of wall times.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opsctl.core.errors import OpsctlError

ROUNDS = 15
HELP_RATIO_LIMIT = 1.5
STATUS_EXTRA_LIMIT_S = 0.2
#: Iterations in the run's log, and jobs of others in the queue beside the run's own.
LOG_ITERATIONS = 200_000
OTHER_JOBS = 200

RUN_FILE = """
[run]
name = "bench"
[slurm]
nodes = 1
gpus_per_node = 2
time = "20:00"
"""


def main() -> dict[str, Any]:
    """Measure, print and return both; the second is left out, saying why, without a Slurm."""
    results = measure_help()
    try:
        results |= measure_status()
    except OpsctlError as error:
        print(f"opsctl status: not measured: {error}")
    return results


def measure_help() -> dict[str, Any]:
    """`opsctl --help` against `python -c 'import click'`."""
    click_s, help_s = alternate([[sys.executable, "-c", "import click"], [*opsctl(), "--help"]])
    ratio = help_s / click_s
    print(
        f"opsctl --help: {help_s * 1e3:.0f} ms, {ratio:.2f}x of python -c 'import click' ({click_s * 1e3:.0f} ms);"
        f" goal <= {HELP_RATIO_LIMIT}x: {_met(ratio <= HELP_RATIO_LIMIT)}"
    )
    return {"help_s": help_s, "import_click_s": click_s, "help_ratio": ratio, "help_ratio_limit": HELP_RATIO_LIMIT}


def measure_status() -> dict[str, Any]:
    """`opsctl status` against `squeue`, on a local cluster, for a run with a long log and others' jobs in the queue.

    Raises OpsctlError where no cluster can be had.
    """
    from opsctl.local.cluster.lifecycle import down, up
    from opsctl.local.cluster.spec import plain

    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    try:
        cluster = up(plain("bench"), folder / "cluster").cluster
        environment = {**cluster.environment(), "OPSCTL_CLUSTER": str(folder / "cluster"), "OPSCTL_ANSWERS_AGE": "0"}
        run = folder / "run"
        make_run(run, LOG_ITERATIONS)
        _submit(environment, "--comment=opsctl run=0123 submit=0", "--array=1-3%1", "--nodes=1")
        _submit(environment, "--hold", f"--array=1-{OTHER_JOBS}", "--nodes=1")
        squeue_s, status_s = alternate([["squeue"], [*opsctl(), "status"]], environment, run)
    finally:
        with _ignored():
            down(folder / "cluster")
        shutil.rmtree(folder, ignore_errors=True)
    extra_s = status_s - squeue_s
    print(
        f"opsctl status: {status_s * 1e3:.0f} ms, squeue {squeue_s * 1e3:.0f} ms, {extra_s * 1e3:.0f} ms more;"
        f" goal <= {STATUS_EXTRA_LIMIT_S * 1e3:.0f} ms more: {_met(extra_s <= STATUS_EXTRA_LIMIT_S)}"
    )
    return {
        "status_s": status_s,
        "squeue_s": squeue_s,
        "status_extra_s": extra_s,
        "status_extra_limit_s": STATUS_EXTRA_LIMIT_S,
    }


def alternate(
    commands: Sequence[Sequence[str]],
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    may_fail: bool = False,
    rounds: int = ROUNDS,
) -> list[float]:
    """Median wall time of each command in seconds, one after the other in every round, the first round not counted."""
    times: list[list[float]] = [[] for _ in commands]
    with tempfile.TemporaryDirectory() as compiled:
        env = {**(os.environ if environment is None else environment), "PYTHONPYCACHEPREFIX": compiled}
        # An installed program has its bytecode beside it, whatever a development shell says.
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        for number in range(rounds + 1):
            for command, taken in zip(commands, times, strict=True):
                started = time.perf_counter()
                # The end of its output tells that it has left; waiting for the process itself looks every 50 ms.
                subprocess.run(command, env=env, cwd=folder, stdout=subprocess.PIPE, check=not may_fail, timeout=60)
                if number:
                    taken.append(time.perf_counter() - started)
    return [statistics.median(taken) for taken in times]


def opsctl() -> list[str]:
    """The console script of this environment, as people call it; else the module."""
    script = Path(sys.executable).with_name("opsctl")
    return [str(script)] if script.exists() else [sys.executable, "-m", "opsctl"]


def make_run(run: Path, iterations: int, name: str = "bench") -> None:
    """A run that has its id and a log of so many iterations."""
    state, logs = run / "output" / ".opsctl", run / "output" / "logs"
    state.mkdir(parents=True)
    logs.mkdir()
    (run / "run.toml").write_text(RUN_FILE.replace("bench", name))
    (state / "run-id").write_text("0123\n")
    with (logs / "main_log.txt").open("w") as log:
        for n in range(1, iterations + 1):
            log.write(
                f"[default7]: iteration {n:8d}/{300000:8d} | consumed samples: {n * 2048:12d} |"
                f" elapsed time per iteration (s): 105.20 | learning rate: 1.000E-05 | global batch size:  2048 |"
                f" lm loss: 1.979558E+00 | grad norm: 0.132 | samples per second: 19.561 | TFLOPs: 149.77 |\n"
            )


def _submit(environment: dict[str, str], *options: str) -> None:
    command = ["sbatch", "--parsable", "--output=/dev/null", "--chdir=/", "--time=10", *options, "--wrap=sleep 600"]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=30)


@contextmanager
def _ignored():  # type: ignore[no-untyped-def]
    """Print an error of the block, so that it does not hide an earlier one."""
    try:
        yield
    except OpsctlError as error:
        print(error, file=sys.stderr)


def _met(is_met: bool) -> str:
    return "met" if is_met else "NOT MET"


if __name__ == "__main__":
    os.environ.pop("OPSCTL_RUN", None)
    main()
