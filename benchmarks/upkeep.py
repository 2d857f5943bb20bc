"""Measure the cost of an idle scheduler: the CPU of a tick without work, and questions to Slurm's controller."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.commands import LOG_ITERATIONS, make_run, opsctl
from benchmarks.looks import cpu_s, desk_environment, met

#: Of one tick, with what it starts: the queue asked, its two successors submitted, claimed, put on record.
TICK_CPU_LIMIT_S = 1.0
TICKS = 7
#: Of one account, however many screens it has.
CALLS_LIMIT = 2
LOOKS_FOR_S, PAUSE_S, MINUTE_S = 75.0, 0.5, 60.0
_SCREENS = (["status", "--watch"], ["status", "--watch"], ["status", "--all", "--watch"])
#: These share answers too. `watch`, `metrics` and `--json` ask Slurm each time.
_LOOKS = (["status"], ["queue"], ["status", "--all"])


def main() -> dict[str, Any]:
    """Measure, print and return both. Slurm's commands are stand-ins that write down when they are called."""
    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    try:
        environment = desk_environment(folder)
        _note_calls(folder)
        return _tick(folder, environment) | _calls(folder, environment)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tick(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    cron = folder / "cron"
    command = [*opsctl(), "cron", "start", "--folder", str(cron), "--via", "slurm"]
    subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True, timeout=60)
    for job in cron.glob("cron.*/*.slurm"):
        job.unlink()
    chain = json.loads((cron / ".opsctl/chain.json").read_text())
    due, taken = int(time.time()) // 3600 * 3600, []
    for number in range(1, TICKS + 1):
        own = ["--token", chain["token"], "--period", "3600", "--due", str(due + 3600 * number)]
        tick = [*opsctl(), "cron", "tick", "--folder", str(cron), *own]
        taken.append(cpu_s(tick, environment, folder, rounds=1))
    claimed = (cron / ".opsctl/ticks.jsonl").read_text().count('"claimed"')
    if claimed != TICKS:
        raise RuntimeError(f"{claimed} of {TICKS} ticks claimed what was due")
    least_s = min(taken)
    print(
        f"a tick of the cron with no job to start: {least_s:.2f} s of CPU, {least_s / TICK_CPU_LIMIT_S:.2f}x of the"
        f" goal of <= {TICK_CPU_LIMIT_S:.0f} s: {met(least_s <= TICK_CPU_LIMIT_S)}"
    )
    return {"tick_cpu_s": least_s, "tick_cpu_limit_s": TICK_CPU_LIMIT_S}


def _calls(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Count the calls within any minute of an account with three screens that stay, their first looks among them.

    Commands that print once share an answer for seconds only, so that a user's last change shows: they are counted
    for comparison, without a goal.
    """
    run = folder / "one"
    make_run(run, LOG_ITERATIONS)
    shared = {key: value for key, value in environment.items() if key != "OPSCTL_ANSWERS_AGE"}
    log = folder / "calls"
    log.unlink(missing_ok=True)  # the ticks decide, and ask each time
    screens = [
        subprocess.Popen([*opsctl(), *words], env=shared, cwd=run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for words in _SCREENS
    ]
    time.sleep(LOOKS_FOR_S)
    for screen in screens:
        screen.terminate()
        screen.wait(30)
    most = _most_in_a_minute(log)
    print(
        f"{len(screens)} screens for {LOOKS_FOR_S:.0f} s: at most {most} calls of Slurm's controller in a minute,"
        f" {most / CALLS_LIMIT:.1f}x of the goal of <= {CALLS_LIMIT}: {met(most <= CALLS_LIMIT)}"
    )
    log.unlink(missing_ok=True)
    began_s, looks = time.monotonic(), 0
    while time.monotonic() - began_s < LOOKS_FOR_S:
        words = _LOOKS[looks % len(_LOOKS)]
        subprocess.run([*opsctl(), *words], env=shared, cwd=run, check=False, capture_output=True, timeout=60)
        looks += 1
        time.sleep(PAUSE_S)
    at_once = _most_in_a_minute(log)
    print(f"{looks} commands that print once in {LOOKS_FOR_S:.0f} s: at most {at_once} calls in a minute")
    return {"calls_a_minute": most, "calls_a_minute_limit": CALLS_LIMIT, "looks": looks, "looks_calls": at_once}


def _most_in_a_minute(log: Path) -> int:
    at = sorted(float(one) for one in log.read_text().split())
    return max((sum(0 <= other - one < MINUTE_S for other in at) for one in at), default=0)


def _note_calls(folder: Path) -> None:
    """Let the stand-ins record their calls, and add those that a tick and a cache need."""
    programs = folder / "bin"
    for name, text in (("scontrol", "PrivateData             = none"), ("sbatch", "4711")):
        (programs / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (programs / name).chmod(0o755)
    for name in ("squeue", "sinfo", "scontrol"):
        first, _, rest = (programs / name).read_text().partition("\n")
        (programs / name).write_text(f"{first}\ndate +%s.%N >> {folder}/calls\n{rest}")


if __name__ == "__main__":
    main()
