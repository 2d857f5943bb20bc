"""Slurm's controller gone or hanging: what only looks says so in one line and in time; what needs no Slurm works."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cluster.conftest import RunningCluster
from tests.cluster.watched_runs import WatchedRun, make_run

#: Seconds: the one deadline for Slurm, and with Python's start on a busy machine.
DEADLINE_S = 8
LONGEST_S = DEADLINE_S + 60
ASKING = {"status": 1, "queue": 1, "watch training": 3}
NOT_ASKING = ("logs", "attempts", "kill-switch status")


def outage(cluster: RunningCluster, kind: str) -> AbstractContextManager[None]:
    """The controller hangs (SIGSTOP) or is gone (kill -9) inside the block."""
    return cluster.stopped("slurmctld") if kind == "hung" else cluster.killed("slurmctld")


@pytest.mark.parametrize("kind", ["hung", "gone"])
def test_who_only_looks_says_so_in_one_line_and_never_that_nothing_runs(
    local_cluster: RunningCluster, tmp_path: Path, kind: str
) -> None:
    run = make_run(local_cluster, tmp_path)
    run.write_log(100)
    run.write_checkpoint(80)
    local_cluster.wait_for_state(run.sbatch(), "RUNNING")
    with outage(local_cluster, kind):
        started = time.monotonic()
        children = {words: run.opsctl.start(*words.split()) for words in ASKING}
        answers = {words: (*child.communicate(timeout=120), child.returncode) for words, child in children.items()}
        took_s = time.monotonic() - started
        for words in NOT_ASKING:
            answer = run(*words.split())
            assert answer.code == 0 and "does not answer" not in answer.err, (words, answer)
    assert took_s < LONGEST_S
    for words, (out, err, code) in answers.items():
        assert code == ASKING[words], (words, out, err)
        assert "Slurm" in out + err
        if kind == "hung":  # by our deadline, not by Slurm's own time-out, which is hardly longer
            assert re.search(r"\b[1-8] s\b|no time left", out + err), (words, out, err)
        assert "not RUNNING" not in out + err and "NOT IN THE QUEUE" not in out
        assert (out if words == "watch training" else err).count("\n") == 1
    assert "iteration 100 of 160" in answers["status"][0] and "iteration 80, saved" in answers["status"][0]
    assert re.search(r"PULSE: demo .*Slurm", run.log.read_text())


def test_afterwards_the_running_job_is_seen_again(local_cluster: RunningCluster, tmp_path: Path) -> None:
    run: WatchedRun = make_run(local_cluster, tmp_path)
    local_cluster.wait_for_state(run.sbatch(), "RUNNING")
    with local_cluster.killed("slurmctld"):
        pass
    answer = run("watch", "training")
    assert answer.code == 0 and "PULSE: demo is running" in answer.out
