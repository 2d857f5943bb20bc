"""Many failures of one training: restarts in one job, or random failures over many jobs.

    python -m benchmarks.soak restarts [--count 100] [--minutes 60] [--longest 120]
    python -m benchmarks.soak failures [--count 40] [--seed 1] [--minutes 60] [--longest 120]

Both train a tiny model on a local cluster. `failures` ends with a comparison: the weights must equal those of a
training without failures, bit by bit. An error names the failure after which something was wrong: also if new
iterations took more than `--longest` seconds after it, or two jobs ran at once.
It runs as root, because a full disk is a small file system that it mounts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.installation import find_installation
from opsctl.local.cluster.spec import plain
from opsctl.run.attempts import events as attempts_file
from opsctl.run.attempts.events import Attempt
from tests.cluster.commands import Opsctl
from tests.cluster.conftest import RunningCluster
from tests.cluster.trainings import Training

_POLL_S = 0.05
_DISK_MIB = 256
_LOSS = re.compile(rb"\[default\d+\]: iteration +(\d+)/.* lm loss: ([^|]+) \|")
_JOB = """\
import sys
from pathlib import Path
from opsctl.core.timestamps import now
from opsctl.jobs.runner.batch import run_job
from opsctl.run.config.paths import RunPaths
from opsctl.slurm.cluster import Cluster
sys.exit(run_job(RunPaths(Path({output!r})), Cluster(), now(), [], standby_after_s=1.0))
"""


@dataclass
class Log:
    """The iterations of a training log, read as it grows."""

    path: Path
    offset: int = 0
    losses: dict[int, set[bytes]] = field(default_factory=dict)
    trained: int = 0  # iterations in all, repeated ones too

    def highest(self) -> int:
        """Return the highest iteration so far."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self.offset)
            whole, end, _ = file.read().rpartition(b"\n")
            self.offset += len(whole + end)
            for iteration, loss in _LOSS.findall(whole + end):
                self.losses.setdefault(int(iteration), set()).add(loss)
                self.trained += 1
        return max(self.losses, default=0)


@dataclass(frozen=True)
class Scene:
    """A training under way, and the random numbers that decide what happens to it."""

    training: Training
    log: Log
    random: random.Random

    @property
    def attempt(self) -> Attempt:
        """Return the last attempt. A full disk may have cut lines of the record."""
        return attempts_file.read(self.training.paths)[-1]

    def a_rank(self) -> int:
        """Return the process of a random rank of the last attempt."""
        return int(self.training.rank(self.attempt.job_id, self.random.randrange(2))["pid"])

    def a_while(self, most_s: float) -> None:
        """Wait for a random time."""
        time.sleep(self.random.uniform(0.5, most_s))


def until(condition: Callable[[], object], what: str, longest_s: float = 600) -> float:
    """Wait until `condition()` is true; return the seconds. Raises TimeoutError."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > longest_s:
            raise TimeoutError(f"no {what} within {longest_s:.0f} s")
        time.sleep(_POLL_S)
    return time.monotonic() - began


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def rank_killed(scene: Scene) -> None:
    """Kill a rank."""
    send(scene.a_rank(), signal.SIGKILL)


def launcher_killed(scene: Scene) -> None:
    """Kill the launcher of a rank."""
    with contextlib.suppress(psutil.NoSuchProcess):
        send(psutil.Process(scene.a_rank()).ppid(), signal.SIGKILL)


def runner_killed(scene: Scene) -> None:
    """Kill the job's process, if it runs."""
    with contextlib.suppress(AssertionError):
        send(scene.training.batch_process(), signal.SIGKILL)


def hang(scene: Scene) -> None:
    """Stop a rank for ever: the job has to end the step."""
    send(scene.a_rank(), signal.SIGSTOP)


def stopped(scene: Scene) -> None:
    """Stop a process for a few seconds: a rank, its launcher, Slurm's process above it, a slurmd or the job's."""
    rank = psutil.Process(scene.a_rank())
    daemon = scene.training.opsctl.cluster.pid(f"slurmd-{scene.random.choice(scene.attempt.nodes)}")
    one = scene.random.choice([rank, *rank.parents()[:2], *([psutil.Process(daemon)] if daemon else [])])
    send(one.pid, signal.SIGSTOP)
    try:
        scene.a_while(6)
    finally:
        send(one.pid, signal.SIGCONT)


def controller_down(scene: Scene) -> None:
    """Take slurmctld down for some seconds; half of the time a rank dies meanwhile."""
    with scene.training.opsctl.cluster.killed("slurmctld"):
        if scene.random.random() < 0.5:
            rank_killed(scene)
        scene.a_while(8)


def node_lost(scene: Scene) -> None:
    """Kill a node of the job, and have Slurm notice at once."""
    cluster, node = scene.training.opsctl.cluster, scene.random.choice(scene.attempt.nodes)
    cluster.kill_node(node)
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=soak", check=False)


def disk_full(scene: Scene) -> None:
    """Fill the file system of the run for some seconds; half of the time a rank dies meanwhile."""
    filler = scene.training.paths.output / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"0" * 65536):
            pass
    try:
        if scene.random.random() < 0.5:
            rank_killed(scene)
        scene.a_while(8)
    finally:
        filler.unlink()


FAILURES = (
    *(rank_killed, launcher_killed, runner_killed, hang),
    *(stopped, controller_down, node_lost, disk_full),
)


def repair(scene: Scene) -> bool:
    """Bring nodes back, and submit if the chain has stopped, as people do. Return whether it had."""
    cluster = scene.training.opsctl.cluster
    for node, state in cluster.node_states().items():
        if cluster.pid(f"slurmd-{node}") is None:
            cluster.start(f"slurmd-{node}")
        if state.startswith(("down", "drain")):
            cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
    for excluded in json.loads(scene.training.opsctl.ok("exclude", "list", "--json"))["exclusions"]:
        scene.training.opsctl.ok("exclude", "remove", excluded["node"])
    if cluster.run("squeue", "-h", "-o", "%i", check=False).stdout.strip():
        return False
    scene.training.submit("1-500")
    return True


@contextlib.contextmanager
def a_cluster(folder: Path) -> Iterator[RunningCluster]:
    """Give a local cluster of four nodes."""
    folder.mkdir()
    up = lifecycle.up(replace(plain("soak"), slurmd_timeout_s=12), folder)
    try:
        yield RunningCluster(up.folder, up.cluster, find_installation())
    finally:
        lifecycle.down(folder)


@contextlib.contextmanager
def a_disk(folder: Path, mib: int) -> Iterator[None]:
    """Mount a small file system at `folder`."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=755", "soak", folder], check=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=60)


def written(cluster: RunningCluster, folder: Path, save_interval: int = 20) -> Training:
    """Write a run on two nodes and a spare one."""
    folder.mkdir(parents=True, exist_ok=True)
    training = Training(Opsctl(cluster, folder))
    training.write(restarts=1000, train_samples=8_000_000, time="2:00:00", save_interval=str(save_interval))
    path = folder / "run.toml"
    text = path.read_text().replace("[slurm]\n", '[slurm]\nspare = 1\nprobe = "off"\n')
    path.write_text(f'{text}\n[watch]\nsilent_most = "0:10"\n\n[retention]\nlast = 3\n')
    return training


def restarts(cluster: RunningCluster, folder: Path, asked: argparse.Namespace) -> None:
    """Kill a rank again and again in one job; every other time once launchers are on standby."""
    training = written(cluster, folder)
    training.submit("1-1", "--begin", "now+5hour")  # publishes the revision
    script = folder / "job.py"
    script.write_text(_JOB.format(output=str(training.paths.output)))
    options = ("--nodes=2", "--ntasks-per-node=1", "--gres=gpu:1", "--time=120")
    job = cluster.sbatch(f"export SLURM_EXPORT_ENV=ALL\nexec {sys.executable} -P {script}", *options)
    standby = training.paths.attempt_folder(job).with_name(f".standby-{job}")
    log, seconds, deadline = Log(training.paths.main_log), [], time.monotonic() + 60 * asked.minutes
    until(lambda: log.highest() > 20, "first iterations")
    for number in range(asked.count):
        if number % 2:
            until(lambda: len(list(standby.glob("*.out"))) == 2, "launchers on standby")
        before = log.highest()
        send(int(training.rank(job, number // 2 % 2)["pid"]), signal.SIGKILL)
        seconds.append(until(lambda: log.highest() > before + 20, f"restart {number + 1}", asked.longest))  # noqa: B023
        print(f"restart {number + 1}: {seconds[-1]:.1f} s to new iterations", flush=True)
        if time.monotonic() > deadline:
            break
    attempts = training.recorded()
    assert {one["job_id"] for one in attempts} == {job}, attempts
    assert [one["restart"] for one in attempts] == list(range(len(seconds) + 1)), attempts
    check(training, log)
    training.paths.kill_switch.touch()
    until(lambda: not cluster.job_state(job).startswith("RUN"), "end of the job")
    median = statistics.median(seconds)
    print(f"{len(seconds)} restarts in one job, median {median:.1f} s, {max(seconds):.1f} s at most")


def check(training: Training, log: Log) -> None:
    """Check that one writer at a time trained each iteration to the same loss."""
    lease = [json.loads(line) for line in training.paths.lease.read_text().splitlines()]
    numbers = [line["number"] for line in lease if line["event"] == "taken"]
    assert numbers == sorted(set(numbers)), f"two writers: {numbers}"
    log.highest()
    several = {iteration: seen for iteration, seen in log.losses.items() if len(seen) > 1}
    assert not several, f"losses differ between attempts: {several}"


def published(training: Training) -> int:
    """Return the iteration of `latest`; 0 without one."""
    with contextlib.suppress(FileNotFoundError):
        return int((training.paths.checkpoints / "latest").read_text().removeprefix("global_step"))
    return 0


def failures(cluster: RunningCluster, folder: Path, asked: argparse.Namespace) -> None:
    """Let random failures happen, check after each, and compare the end with an undisturbed training."""
    training = written(cluster, folder / "disturbed")
    scene = Scene(training, Log(training.paths.main_log), random.Random(asked.seed))
    log, deadline = scene.log, time.monotonic() + 60 * asked.minutes
    seen: Counter[str] = Counter()
    slowest: dict[str, float] = {}
    submits = 0
    training.submit("1-500")
    for number in range(asked.count):
        goal = log.highest() + scene.random.randint(1, 45)
        until(lambda: log.highest() >= goal, f"iteration {goal} before failure {number + 1}")  # noqa: B023
        newest = published(training)
        chosen = [scene.random.choice(FAILURES), *([rank_killed] if scene.random.random() < 0.2 else [])]
        name = ", ".join(one.__name__ for one in chosen)
        print(f"failure {number + 1}: {name} at iteration {log.highest()}", flush=True)
        for one in chosen:
            one(scene)
        goal, began = log.highest() + 5, time.monotonic()
        while log.highest() <= goal:
            if time.monotonic() - began > asked.longest:
                raise TimeoutError(f"no iteration within {asked.longest:.0f} s after {name}")
            if running(scene.training) == 0:
                submits += repair(scene)
            time.sleep(0.5)
        took_s = time.monotonic() - began
        assert (running(scene.training) or 0) < 2, f"two jobs run after {name}"
        repair(scene)
        assert published(training) >= newest, f"latest went back after {name}"
        check(training, log)
        seen[name] += 1
        slowest[name] = max(slowest.get(name, 0.0), took_s)
        training.opsctl.ok("checkpoints", "prune", "--yes", "-q")
        if time.monotonic() > deadline:
            break
    training.paths.kill_switch.touch()
    until(lambda: not scene.attempt.is_open, "end of the disturbed training")
    cluster.cancel_everything()
    end, attempts = published(training), attempts_file.read(training.paths)
    for name, count in sorted(seen.items()):
        print(f"{name:32} {count:3} times, {slowest[name]:5.1f} s at most")
    print(f"{sum(seen.values())} failures, {len(attempts)} attempts, {submits} submissions by hand")
    print(f"{log.trained} iterations trained, {end} published; now without failures")
    without = written(cluster, folder / "without", save_interval=1000)
    without.submit("1-1", "--", "--exit-samples", str(8 * end))
    until(lambda: not cluster.run("squeue", "-h").stdout.strip(), "end of the undisturbed training", 3600)
    names = [one.paths.checkpoints / f"global_step{end}" for one in (training, without)]
    assert published(without) == end
    compare(*map(tensors, names))


def running(training: Training) -> int | None:
    """Return the number of running jobs; None if Slurm does not answer."""
    states = training.opsctl.cluster.run("squeue", "-h", "-t", "running", check=False)
    return len(states.stdout.splitlines()) if states.returncode == 0 else None


def tensors(folder: Path) -> dict[str, Any]:
    """Return all tensors of a checkpoint by file and place."""
    import torch

    found: dict[str, Any] = {}

    def collect(name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif isinstance(value, dict):
            for key, one in value.items():
                collect(f"{name}/{key}", one)
        elif isinstance(value, list | tuple):
            for place, one in enumerate(value):
                collect(f"{name}/{place}", one)

    for path in sorted(folder.rglob("*.pt")):
        collect(path.name, torch.load(path, map_location="cpu", weights_only=False))
    return found


def compare(disturbed: dict[str, Any], undisturbed: dict[str, Any]) -> None:
    """Check that all tensors are equal, bit by bit."""
    import torch

    assert disturbed and disturbed.keys() == undisturbed.keys(), set(disturbed) ^ set(undisturbed)
    different = [name for name, one in disturbed.items() if not torch.equal(one, undisturbed[name])]
    assert not different, f"{len(different)} of {len(disturbed)} tensors differ, first {different[0]}"
    print(f"all {len(disturbed)} tensors are equal, bit by bit")


def main(words: Sequence[str] = ()) -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("what", choices=("restarts", "failures"))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--longest", type=float, default=120, help="seconds")
    asked = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is cleaned up
    act = {"restarts": restarts, "failures": failures}[asked.what]
    with tempfile.TemporaryDirectory(prefix="ocs", dir="/tmp") as name, a_disk(runs := Path(name) / "runs", _DISK_MIB):
        try:
            with a_cluster(Path(name) / "c") as cluster:
                act(cluster, runs, asked)
        except BaseException:
            kept = tempfile.mkdtemp(prefix="soak-", dir="/tmp")
            subprocess.run(["cp", "-a", runs, kept], check=False, timeout=600)
            subprocess.run(["cp", "-a", Path(name) / "c" / "log", kept], check=False, timeout=600)
            print(f"the runs and Slurm's logs are kept in {kept}", flush=True)
            raise


if __name__ == "__main__":
    main(sys.argv[1:])
