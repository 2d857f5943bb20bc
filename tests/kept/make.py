"""Makes run folders with earlier builds: `python -m tests.kept.make [NAME...]`; all that are missing without a name.

Each is a real training on a local cluster of that build's own: it is shot once, revised while it runs, asked to save,
left through the kill switch, submitted again, and lost with its cluster. What a build cannot do yet is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

from tests.kept import BUILDS, Build
from tests.tiny_run import write_data

ROOT = Path(__file__).resolve().parents[2]
#: Short, for the sockets in it; its name and the build's stand in what they write.
PLACE = Path("/tmp/kept")
CLUSTER = "kept"
START_S = 240

RUN_FILE = """\
[run]
name = "kept"
output = "output"

[slurm]
nodes = 1
gpus_per_node = 2
time = "10:00"
exit_margin = "1:00"

[array]
tasks = "1-4%1"

[trainer]
num_layers = 2
hidden_size = 8
num_attention_heads = 2
seq_length = 16
micro_batch_size = 1
global_batch_size = 8
train_samples = 400_000
lr = 1e-2
eval_iters = 0
log_interval = 5
bf16 = true
make_vocab_size_divisible_by = 8

[data]
data_path = "data"
split = "100,0,0"
vocab_size = 300

[checkpoints]
save_interval = 20

[expect]
seconds_per_iteration = 1
save_seconds = 1

[env]
OMP_NUM_THREADS = "1"
"""


class Kept:
    """One build at work in a folder of its own under PLACE."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.work = PLACE / build.name
        self.source, self.run = self.work / "source", self.work / "run"
        self.python = self.work / "venv" / "bin" / "python"

    def make(self) -> None:
        """Write the build's archive."""
        shutil.rmtree(self.work, ignore_errors=True)
        try:
            self._lay_out()
            self.opsctl("local-cluster", "up", "--name", CLUSTER, "--nodes", "1", "--gpus", "2")
            self._train()
        finally:
            self.opsctl("local-cluster", "down", "--name", CLUSTER, check=False)
            subprocess.run(["git", "worktree", "remove", "--force", self.source], cwd=ROOT, check=True, timeout=60)
        self._trim()
        with tarfile.open(self.build.archive, "w:xz") as archive:
            archive.add(self.run, "run", filter=_nobodys)
        shutil.rmtree(self.work)

    def opsctl(self, *words: str, check: bool = True) -> str:
        """Return what a command of this build prints. With `check` it has to succeed."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPSCTL", "SLURM", "PYTHON", "XDG"))}
        environment = {**kept, "XDG_STATE_HOME": str(self.work / "state"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [self.python, "-m", "opsctl", *words],
            cwd=self.run,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
        )
        if check and done.returncode:
            raise SystemExit(f"{self.build.name}: opsctl {' '.join(words)} left with {done.returncode}")
        return done.stdout

    def _lay_out(self) -> None:
        """The build's sources, a Python that finds these before any other opsctl, and the run's folder."""
        self.run.mkdir(parents=True)
        subprocess.run(
            ["git", "worktree", "add", "-q", "--force", "--detach", self.source, self.build.commit],
            cwd=ROOT,
            check=True,
            timeout=60,
        )
        venv.create(self.work / "venv", with_pip=False)
        packages = self.work / "packages"
        packages.symlink_to(sysconfig.get_path("purelib"))
        own = Path(sysconfig.get_path("purelib", vars={"base": str(self.work / "venv")}))
        (own / "kept.pth").write_text(f"{self.source}\n{packages}\n")
        write_data(self.run / "data")
        (self.run / "run.toml").write_text(RUN_FILE)

    def _train(self) -> None:
        self.opsctl("submit", "--array", "1-4%1", "--cluster", CLUSTER)
        self._wait_for(lambda: self._saved() >= 20, "the first save")
        os.kill(self._a_rank(), signal.SIGKILL)
        self._wait_for(lambda: len(self._attempts()) > 1 and "reason" in self._attempts()[0], "the second attempt")
        before = self._saved()
        self._wait_for(lambda: self._saved() > before, "a save of the second attempt")
        text = (self.run / "run.toml").read_text()
        (self.run / "run.toml").write_text(text.replace("save_interval = 20", "save_interval = 40"))
        self.opsctl("revise")
        for acts in ("request save --why kept", "exclude add node1 --why kept"):
            self.opsctl(*acts.split(), check=False)
        for looks in ("watch all", "on-call", "checkpoints list", "triage"):
            self.opsctl(*looks.split(), check=False)
        if "exclude" in self.opsctl("--help"):
            self.opsctl("exclude", "remove", "node1", check=False)
        self.opsctl("kill-switch", "trigger", "--reason", "kept")
        self._wait_for(lambda: all("reason" in one for one in self._attempts()), "the end of the second attempt")
        self.opsctl("kill-switch", "deactivate")
        self.opsctl("cancel", check=False)
        left = len(self._attempts())
        self.opsctl("submit", "--array", "1-2%1", "--cluster", CLUSTER)
        self._wait_for(lambda: len(self._attempts()) > left and self._saved() > before + 40, "a second chain's save")

    def _wait_for(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_S
        while not happened():
            if time.monotonic() > deadline:
                self.opsctl("logs", "-n", "30", check=False)
                raise SystemExit(f"{self.build.name}: waited {START_S} s for {what}")
            time.sleep(0.2)

    def _saved(self) -> int:
        """The iteration that `latest` names; 0 before there is one."""
        with contextlib.suppress(FileNotFoundError):
            return int((self.run / "output/checkpoints/latest").read_text().strip().removeprefix("global_step"))
        return 0

    def _attempts(self) -> list[dict[str, object]]:
        """The recorded attempts, oldest first, each as its last events say."""
        events: dict[str, dict[str, object]] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in (self.run / "output/.opsctl/attempts.jsonl").read_text().splitlines():
                event = json.loads(line)
                events[event["id"]] = {**events.get(event["id"], {}), **event}
        return list(events.values())

    def _a_rank(self) -> int:
        """The process id of rank 1 of the newest attempt."""
        for path in sorted((self.run / "output").rglob("ranks-*.json"), key=lambda one: one.stat().st_mtime)[-1:]:
            return next(int(one["pid"]) for one in json.loads(path.read_text()) if one["rank"] == 1)
        raise SystemExit(f"{self.build.name}: the ranks were not recorded")

    def _trim(self) -> None:
        """Leave the latest checkpoint alone, and nothing that is only large or only of this machine."""
        checkpoints = self.run / "output/checkpoints"
        for folder in checkpoints.glob("*global_step*"):
            if folder.name != f"global_step{self._saved()}":
                shutil.rmtree(folder)
        for large in self.run.rglob("*.npy"):  # orders of samples, which any start builds again
            large.unlink()
        for path in self.run.rglob("environment.json"):
            path.write_text(re.sub(r'file:///[^"]*', "file:///where/it/was/installed/from", path.read_text()))


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main(names: list[str]) -> int:
    """Make those builds' folders. Returns the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the cluster comes down
    builds = {build.name: build for build in BUILDS}
    for name in names or [one.name for one in BUILDS if not one.archive.exists()]:
        Kept(builds[name]).make()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
