"""The definition of a fault: the set-up of its training, the fault itself, and the truth about it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.commands import Opsctl
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import Training


@dataclass(frozen=True)
class Truth:
    """The true cause of a training's end. `node` "" and `rank` None: it is not that of one node or rank."""

    cause: str
    about: str  # one sentence
    user_fault: bool = False
    rank: int | None = None
    node: str = ""  # "of rank": the node of `rank`; "of job": a node that the fault itself notes


@dataclass
class Stage:
    """One fault's folder on the cluster, and what it notes while it is caused."""

    cluster: RunningCluster
    folder: Path
    job_id: int = 0
    nodes: list[str] = field(default_factory=list)  # of the job, in Slurm's order
    culprit: str = ""  # a node that the fault chose

    @property
    def training(self) -> Training:
        return Training(Opsctl(self.cluster, self.folder))

    @property
    def hooks(self) -> Path:
        """A folder of the user's own modules, on the ranks' PYTHONPATH."""
        return self.folder / "hooks"

    def pid(self, rank: int) -> int:
        """The process of a rank of opsctl's training."""
        return int(self.training.rank(self.job_id, rank)["pid"])

    def is_over(self) -> bool:
        return not self.cluster.run("squeue", "-h", "-j", str(self.job_id), check=False).stdout.strip()

    def wait_until_over(self, timeout_s: float = 400) -> None:
        wait_until(self.is_over, timeout_s, f"job {self.job_id} to end")


@dataclass(frozen=True)
class Fault:
    """A training of opsctl's (`changes` to its run file, `environment` sourced on every node), or a plain job."""

    name: str
    truth: Truth
    do: Callable[[Stage], None] = lambda _stage: None  # once it trains
    changes: Mapping[str, str] = field(default_factory=dict)
    tables: str = ""  # more tables of its run file, as TOML
    environment: str = ""  # shell lines before each launcher
    tasks: str = "1"
    nodes: int = 2
    ranks_per_node: int = 2
    before: Callable[[Stage], None] = lambda _stage: None  # before it is submitted
    script: str = ""  # of a plain job, in place of opsctl's chain
    options: tuple[str, ...] = ()  # sbatch's, for that


def wait_for_words(stage: Stage, words: str, timeout_s: float = 120, log: str = "job.out") -> None:
    """Wait until a plain job has printed `words`."""
    path = stage.folder / log

    def printed() -> bool:
        return path.exists() and words in path.read_text(errors="replace")

    wait_until(printed, timeout_s, f"{words!r} in {path}")


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[None]:
    """A small file system in memory at `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(folder)], check=True, timeout=20
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, timeout=20)


def drop_connections(pid: int) -> None:
    """Have the kernel reset every TCP connection of a process (ss -K), as a dead switch in the end does."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = subprocess.run(["ss", "-Htnp"], capture_output=True, text=True, check=True, timeout=20).stdout
        rows = [line.split() for line in found.splitlines() if f"pid={pid}," in line]
        if rows:
            break
        time.sleep(0.2)
    for row in rows:
        local, peer = row[3].rsplit(":", 1), row[4].rsplit(":", 1)
        for near, far in ((local, peer), (peer, local)):
            words = ["src", near[0], "sport", "=", near[1], "dst", far[0], "dport", "=", far[1]]
            subprocess.run(["ss", "-K", *words], capture_output=True, check=False, timeout=20)


def remove(folder: Path) -> None:
    """Remove a fault's folder, whatever is still mounted in it."""
    for line in Path("/proc/mounts").read_text().splitlines():
        if line.split()[1].startswith(f"{folder}/"):
            subprocess.run(["umount", "-l", line.split()[1]], check=False, timeout=20)
    shutil.rmtree(folder, ignore_errors=True)
