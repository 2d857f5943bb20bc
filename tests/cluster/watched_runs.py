"""Runs with jobs of their own in a real queue, for the tests that look at them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.commands import Answer, Opsctl
from tests.cluster.conftest import RunningCluster
from tests.tiny_run import write_checkpoint

RUN_FILE = """
[run]
name = "{name}"
team = "Eng WG"
[slurm]
nodes = 1
gpus_per_node = 2
time = "20:00"
"""


@dataclass(frozen=True)
class WatchedRun:
    """A run that has been submitted by hand: its jobs carry its comment, whatever their names are."""

    cluster: RunningCluster
    folder: Path
    run_id: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def log(self) -> Path:
        return self.folder / "output" / "logs" / "main_log.txt"

    def sbatch(self, *options: str, script: str = "sleep 600", name: str = "renamed") -> int:
        """A job of this run; the id."""
        comment = f"--comment=opsctl run={self.run_id} submit=0"
        return self.cluster.sbatch(script, comment, f"--job-name={name}", "--time=10", *options)

    def __call__(self, *words: str) -> Answer:
        return self.opsctl(*words)

    @property
    def opsctl(self) -> Opsctl:
        return Opsctl(self.cluster, self.folder)

    def write_log(self, iterations: int) -> None:
        """A training log with so many iterations of half a second and 32 samples."""
        self.log.write_text(
            "".join(
                f"[default1]: iteration {n:8d}/{160:8d} | consumed samples: {32 * n:12d} |"
                f" elapsed time per iteration (s): 0.50 | learning rate: 1.000E-03 | global batch size:    32 |"
                f" lm loss: {7 - n / 100:.6E} | samples per second: 64.000 | TFLOPs: 1.50 |\n"
                for n in range(1, iterations + 1)
            )
        )

    def write_checkpoint(self, iteration: int) -> None:
        """A whole checkpoint."""
        write_checkpoint(self.folder, iteration, 32 * iteration)


def make_run(cluster: RunningCluster, folder: Path, name: str = "demo") -> WatchedRun:
    """A run in `folder` that has its id, as after its first submit."""
    run = WatchedRun(cluster, folder)
    (folder / "output" / ".opsctl").mkdir(parents=True)
    run.log.parent.mkdir()
    (folder / "run.toml").write_text(RUN_FILE.format(name=name))
    (folder / "output" / ".opsctl" / "run-id").write_text(run.run_id + "\n")
    return run
