"""The parts of the demo's steps: the screen, commands as a user types them, and waiting for their results."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from opsctl.local.cluster.lifecycle import down
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chosen_cluster import local_clusters_folder
from trainer.formats.logs.guard_lines import Reason

#: The screen. While the demo waits, it shows a status line at the bottom.
SCREEN = Console(highlight=False, markup=False, soft_wrap=True)
CLUSTER = "demo"
COMMAND_TIMEOUT_S = 120
#: Endings of an attempt that the demo expects.
STOPS = (Reason.KILL_SWITCH, Reason.FINISHED)
OPSCTL = [sys.executable, "-m", "opsctl"]


class DemoFailed(Exception):
    """A step of the demo had an unexpected result."""


@dataclass(frozen=True)
class Line:
    """One iteration of the training log."""

    iteration: int
    loss: float


def show(text: str) -> None:
    """Print a line on stdout at once."""
    SCREEN.print(text)
    SCREEN.file.flush()


def cluster_folder() -> Path:
    """Return the folder of the demo's own cluster, next to the user's others."""
    return local_clusters_folder() / CLUSTER


def clear_the_stage() -> None:
    """End the cluster of an earlier demo and clear its queue, whose chains would run before the new one."""
    if down(cluster_folder()):
        show("(ended the cluster of an earlier demo)")
    shutil.rmtree(cluster_folder(), ignore_errors=True)


class Stage:
    """One run folder on the demo's cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_folder = folder / "demo"

    def opsctl(self, *words: str, expect: int = 0, where: Path | None = None) -> str:
        """Show and run an opsctl command, with its messages on the screen. Returns its stdout, which is shown too."""
        show(f"$ {shlex.join(['opsctl', *words])}")
        done = subprocess.run(
            [*OPSCTL, *words],
            cwd=where or self.run_folder,
            stdout=subprocess.PIPE,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        if done.stdout:
            show(done.stdout.removesuffix("\n"))
        if done.returncode != expect:
            raise DemoFailed(f"`{shlex.join(['opsctl', *words])}` ended with exit code {done.returncode}, not {expect}")
        return done.stdout

    def slurm(self, *words: str) -> None:
        """Run one of Slurm's commands on the demo's cluster."""
        self.opsctl("local-cluster", "exec", "--name", CLUSTER, "--", *words)

    def json(self, *words: str) -> Any:
        """Return the decoded output of `opsctl WORDS --json`. Raises CalledProcessError if the command fails."""
        done = subprocess.run(
            [*OPSCTL, *words, "--json"],
            cwd=self.run_folder,
            stdout=subprocess.PIPE,
            timeout=COMMAND_TIMEOUT_S,
            check=True,
            start_new_session=True,  # Ctrl-C ends the demo, not this background command
        )
        return json.loads(done.stdout)

    def attempts(self) -> list[dict[str, Any]]:
        """Return this chain's attempts, oldest first."""
        attempts: list[dict[str, Any]] = self.json("attempts")["attempts"]
        return attempts

    def ended(self, task: int) -> bool:
        """Return True if the chain's array task `task` has an attempt that ended."""
        return any(
            attempt.get("array_task") in (task, str(task)) and attempt.get("reason") for attempt in self.attempts()
        )

    def log_lines(self) -> list[Line]:
        """Return the iterations in the training log, in order."""
        from opsctl.run.logs.lines import iteration_losses

        try:
            text = RunPaths(self.run_folder / "output").main_log.read_text(errors="replace")
        except FileNotFoundError:
            return []
        return [Line(iteration, loss) for iteration, loss in iteration_losses(text)]

    def wait_for(self, happened: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until `happened`, with a status line. Raises DemoFailed after `timeout_s`, and shows the log's end."""
        deadline = time.monotonic() + timeout_s
        with SCREEN.status(f"waiting for {what}"):
            while not happened():
                lost = next((a for a in self.attempts() if a.get("reason") and a["reason"] not in STOPS), None)
                if lost is not None or time.monotonic() > deadline:
                    break
                time.sleep(1)
            else:
                return
        subprocess.run([*OPSCTL, "logs", "-n", "15"], cwd=self.run_folder, timeout=COMMAND_TIMEOUT_S)
        if lost is not None:
            raise DemoFailed(f"attempt {lost['number']} ended: {lost['reason']}")
        raise DemoFailed(f"waited {timeout_s:.0f} s for {what}")
