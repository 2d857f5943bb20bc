"""Test how often a real controller is asked when many look at once."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.watched_runs import WatchedRun, make_run
from tests.on_terminal import Terminal


class Counted:
    """opsctl of one account, whose Slurm commands write down that they were called."""

    def __init__(self, cluster: RunningCluster, run: WatchedRun, folder: Path) -> None:
        self.run, self.calls = run, folder / "calls"
        programs = folder / "bin"
        programs.mkdir()
        real = cluster.environment()
        for name in ("squeue", "sinfo", "scontrol", "scancel", "sacct"):
            script = f'#!/bin/sh\necho {name} >>"{self.calls}"\nPATH="{real["PATH"]}" exec {name} "$@"\n'
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)
        own = {
            "PATH": f"{programs}:{real['PATH']}",
            "SLURM_CONF": str(cluster.places.slurm_conf),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        kept = {k: v for k, v in real.items() if not k.startswith(("OPSCTL", "SLURM"))}
        self.environment = {**kept, **own}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "opsctl", *words],
            cwd=self.run.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def asked(self) -> list[str]:
        """Return what was called since the last look."""
        found = sorted(self.calls.read_text().split()) if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return found


def test_ten_statuses_at_once_are_one_question_each_check_asks_its_own_and_a_change_is_seen_at_once(
    local_cluster: RunningCluster, tmp_path: Path
) -> None:
    run = make_run(local_cluster, tmp_path / "run")
    job = run.sbatch()
    local_cluster.wait_for_state(job, "RUNNING")
    opsctl = Counted(local_cluster, run, tmp_path)
    words = [("status",)] * 8 + [("watch", "all", "--no-log")] * 3 + [("queue",)]
    lookers = [opsctl.start(*one) for one in words]
    said = [one.communicate(timeout=120) for one in lookers]
    assert all("RUNNING" in out for out, _ in said[:8]) and str(job) in said[-1][0], said
    asked = opsctl.asked()
    # The screens share one question; each check asks its own, unless it waited while another one asked.
    assert 1 <= asked.count("squeue") <= 4 and 1 <= asked.count("sinfo") <= 4
    assert set(asked) <= {"squeue", "sinfo", "scontrol"}
    assert asked.count("scontrol") <= 1  # whether it hides others' jobs: once a day
    opsctl.start("cancel").communicate(timeout=60)
    opsctl.asked()
    out, _ = opsctl.start("status").communicate(timeout=60)
    assert "STOPPED" in out and opsctl.asked().count("squeue") == 1
    out, _ = opsctl.start("status", "--fresh").communicate(timeout=60)
    assert opsctl.asked().count("squeue") == 1
    # What is told, and told to have ended, goes by the queue of now: another user may have told what is newer.
    opsctl.start("watch", "training", "--alert", "--no-log").communicate(timeout=60)
    assert opsctl.asked().count("squeue") == 1


def test_a_check_never_goes_by_an_answer_from_before_the_controller_died(
    local_cluster: RunningCluster, tmp_path: Path
) -> None:
    run = make_run(local_cluster, tmp_path / "run")
    local_cluster.wait_for_state(run.sbatch(), "RUNNING")
    opsctl = Counted(local_cluster, run, tmp_path)
    opsctl.environment["OPSCTL_ANSWERS_AGE"] = "600"
    check = ("watch", "training", "--no-log")
    for words in (check, check, ("metrics",), ("status", "--json"), ("queue", "--json")):
        asking = opsctl.start(*words)
        asking.communicate(timeout=60)
        assert asking.returncode == 0 and opsctl.asked().count("squeue") == 1, words
    with local_cluster.killed("slurmctld"):
        blind = opsctl.start(*check)
        blind.communicate(timeout=60)
        assert blind.returncode == 3


def test_a_screen_with_an_old_answer_shows_its_age_and_counts_the_jobs_time_on(
    local_cluster: RunningCluster, tmp_path: Path
) -> None:
    run = make_run(local_cluster, tmp_path / "run")
    local_cluster.wait_for_state(run.sbatch(), "RUNNING")
    opsctl = Counted(local_cluster, run, tmp_path)
    opsctl.environment["OPSCTL_ANSWERS_AGE"] = "600"
    opsctl.start("status").communicate(timeout=60)
    opsctl.asked()

    def elapsed_s(out: str) -> int:
        found = re.search(r"RUNNING for (\d+):(\d\d):(\d\d)", out)
        assert found is not None, out
        hours, minutes, seconds = map(int, found.groups())
        return 3600 * hours + 60 * minutes + seconds

    def aged() -> str:
        out, _ = opsctl.start("status").communicate(timeout=60)
        return str(out) if "answer is" in out else ""

    out = str(wait_until(aged, 60, "the answer to be old enough to be shown with its age"))
    assert elapsed_s(out) >= 5
    assert opsctl.asked() == []


@pytest.mark.nightly
def test_who_watches_for_long_asks_twice_a_minute_at_most_though_nothing_is_shared(
    local_cluster: RunningCluster, tmp_path: Path
) -> None:
    run = make_run(local_cluster, tmp_path / "run")
    run.write_log(40)
    local_cluster.wait_for_state(run.sbatch(), "RUNNING")
    run.sbatch()
    opsctl = Counted(local_cluster, run, tmp_path)
    terminal = Terminal(run.folder, "status", "--watch", **{**opsctl.environment, "OPSCTL_ANSWERS_AGE": "0"})
    try:
        terminal.until("demo  RUNNING for")
        began_s = time.monotonic()
        for iterations in range(41, 49):
            run.write_log(iterations)
            terminal.press("l")
            terminal.until(f"at iteration {iterations}")
        asked = opsctl.asked()
        assert asked.count("squeue") == 1 and len(asked) == 2, asked
        assert time.monotonic() - began_s < 55, "this machine is too slow to tell"
        terminal.press("q")
        assert terminal.ended() == 0
    finally:
        terminal.child.kill()
        terminal.child.wait(timeout=30)
