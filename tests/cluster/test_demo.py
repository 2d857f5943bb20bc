"""`opsctl demo` when it is interrupted, started twice, or started after one that was ended hard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.daemons import processes_of
from opsctl.local.cluster.files import places_of
from opsctl.local.cluster.spec import plain
from tests.cluster.commands import open_folder
from tests.cluster.conftest import RunningCluster, wait_until


def test_an_earlier_demos_queue_is_forgotten_two_do_not_meet_and_control_c_leaves_nothing(
    local_cluster: RunningCluster,
) -> None:
    """The earlier one was ended by kill -9 while its job ran: the cluster is up and every node busy."""
    with open_folder() as folder:
        clusters = folder / "opsctl" / "clusters"
        earlier = lifecycle.up(plain("demo"), clusters / "demo")
        left = replace(local_cluster, folder=earlier.folder, cluster=earlier.cluster)
        demo: subprocess.Popen[str] | None = None
        try:
            left.wait_for_state(left.sbatch("sleep 600", "--job-name=earlier", "--nodes=4"), "RUNNING")
            demo = _start(folder)
            said = folder / "said"
            wait_until(lambda: "$ opsctl plan" in said.read_text(), 120, "the demo's plan")
            assert "earlier" not in left.run("squeue", "-h", "-o", "%j").stdout

            second = subprocess.run(_WORDS, cwd=folder, env=_environment(folder), capture_output=True, timeout=60)
            assert (second.returncode, second.stderr.count(b"\n")) == (1, 1)
            assert f"pid {demo.pid}" in second.stderr.decode()

            wait_until(lambda: "== The loss falls" in said.read_text(), 60, "the chain to be submitted")
            os.killpg(demo.pid, signal.SIGINT)
            assert demo.wait(timeout=90) == 130
            assert "interrupted" in said.read_text() and "Traceback" not in said.read_text()
            assert processes_of(places_of(earlier.folder)) == []
        finally:
            if demo is not None and demo.poll() is None:
                demo.kill()
            lifecycle.down(clusters / "demo")


_WORDS = [sys.executable, "-m", "opsctl", "demo"]


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(folder)}


def _start(folder: Path) -> subprocess.Popen[str]:
    """The demo in a process group of its own, as a terminal has it."""
    with (folder / "said").open("w") as said:
        return subprocess.Popen(
            _WORDS, cwd=folder, env=_environment(folder), stdout=said, stderr=said, text=True, process_group=0
        )
