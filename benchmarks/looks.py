"""Measure checks: all checks compared with a glance at one run, and a hundred runs on one screen."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.commands import LOG_ITERATIONS, alternate, make_run, opsctl

#: All checks and the status of one run, against the status alone, in wall time and in CPU time.
ALL_RATIO_LIMIT = 2.0
RUNS, RUNS_LIMIT_S = 100, 2.0
LOG_LINES = 2000
CPU_ROUNDS = 7


def main() -> dict[str, Any]:
    """Measure, print and return both. A stand-in is Slurm: what the controller takes is not ours to measure."""
    with desk() as (folder, environment):
        return _one_run(folder, environment) | _many_runs(folder, environment)


@contextmanager
def desk() -> Iterator[tuple[Path, dict[str, str]]]:
    """(a folder, the environment of who looks from there), until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    try:
        yield folder, desk_environment(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _one_run(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    run = folder / "one"
    make_run(run, LOG_ITERATIONS)
    status, watch = [*opsctl(), "status"], [*opsctl(), "watch", "all", "--no-log"]
    status_s, watch_s = alternate([status, watch], environment, run, may_fail=True)
    status_cpu_s, watch_cpu_s = (cpu_s(command, environment, run) for command in (status, watch))
    wall, cpu = watch_s / status_s, watch_cpu_s / status_cpu_s
    is_met = max(wall, cpu) <= ALL_RATIO_LIMIT
    print(
        f"opsctl watch all: {watch_s * 1e3:.0f} ms, {wall:.2f}x of opsctl status ({status_s * 1e3:.0f} ms); CPU"
        f" {watch_cpu_s * 1e3:.0f} ms, {cpu:.2f}x; goal <= {ALL_RATIO_LIMIT:.0f}x: {met(is_met)}"
    )
    return {
        "watch_all_s": watch_s,
        "status_s": status_s,
        "watch_all_ratio": wall,
        "watch_all_cpu_ratio": cpu,
        "watch_all_ratio_limit": ALL_RATIO_LIMIT,
    }


def _many_runs(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    from opsctl.run.config.locate import remember_run

    for number in range(RUNS):
        run = folder / "many" / f"run{number:03}"
        make_run(run, LOG_LINES, run.name)
        remember_run(run.name, run / "run.toml", environment)
    results: dict[str, Any] = {"runs": RUNS, "runs_limit_s": RUNS_LIMIT_S}
    for key, words in (
        ("status_all", ["status", "--all"]),
        ("watch_all_runs", ["watch", "all", "--all-runs", "--no-log"]),
    ):
        (taken_s,) = alternate([[*opsctl(), *words]], environment, folder, may_fail=True, rounds=5)
        goal = f"; goal <= {RUNS_LIMIT_S:.0f} s: {met(taken_s <= RUNS_LIMIT_S)}" if key == "status_all" else ""
        print(f"opsctl {' '.join(words)}: {RUNS} runs in {taken_s:.2f} s{goal}")
        results[f"{key}_s"] = taken_s
    return results


def cpu_s(command: Sequence[str], environment: dict[str, str], folder: Path, rounds: int = CPU_ROUNDS) -> float:
    """Least CPU seconds of the command and all that it starts."""
    taken = []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=False, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken)


def desk_environment(folder: Path) -> dict[str, str]:
    """An account of its own, and a stand-in for Slurm's commands: one job of the run 0123, twenty nodes."""
    programs = folder / "bin"
    programs.mkdir()
    times = "1:00,20:00:00,1767000000,1767000000,1767072000"
    job = f"7,7,N/A,one,root,main,RUNNING,None,node1,1,{times},,opsctl run=0123 submit=0,/,0"
    nodes = [f"node{number},idle,none,main*" for number in range(20)]
    for name, rows in (("squeue", [job]), ("sinfo", nodes)):
        text = "".join(row.replace(",", "\x1f") + "\x1e" for row in rows)
        (programs / f"{name}.txt").write_text(text)
        # As the programs do, it ends rows as it is asked to.
        end = "for word; do case $word in --Format=*) end=${word##*:} ;; esac; done"
        (programs / name).write_text(f'#!/bin/sh\n{end}\nexec sed "s/\x1e/$end/g" {programs}/{name}.txt\n')
        (programs / name).chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OPSCTL"))}
    own = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("STATE", "CONFIG", "CACHE")}
    return {**kept, **own, "PATH": f"{programs}:{kept['PATH']}", "OPSCTL_ANSWERS_AGE": "0"}


def met(is_met: bool) -> str:
    """Return whether a goal is, in words."""
    return "met" if is_met else "NOT MET"


if __name__ == "__main__":
    main()
