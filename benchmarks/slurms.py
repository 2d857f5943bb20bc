"""A poll of 100,000 queued jobs, and what a thousand nodes cost beside four, on real Slurms."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import opsctl
from benchmarks.looks import met
from opsctl.core.errors import SlurmMissing
from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.spec import Spec, plain
from opsctl.slurm.cluster import Cluster
from tests.tiny_run import write_run

JOBS, POLL_LIMIT_S, POLL_LIMIT_MIB = 100_000, 1.0, 300
NODES, FEW, NODES_RATIO_LIMIT = 1000, 4, 2.0
ROUNDS = 7

#: One poll in a process of its own: seconds, MiB at most of it and of squeue, jobs.
_POLL = """
import json, resource, sys, time
from opsctl.run.state.chosen_cluster import find_cluster
from opsctl.slurm.backends import client_for
client, began = client_for(find_cluster(sys.argv[1]), 60), time.perf_counter()
jobs = len(client.jobs())
taken = time.perf_counter() - began
most = [resource.getrusage(one).ru_maxrss / 1024 for one in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps([taken, *most, jobs]))
"""


def main() -> dict[str, Any]:
    """Measure, print and return both; nothing where there is no Slurm."""
    try:
        return _many_jobs() | _many_nodes()
    except SlurmMissing as error:
        print(f"skipped: {error}")
        return {}


def _many_jobs() -> dict[str, Any]:
    spec = replace(
        plain("jobs"), extra_slurm_conf=("MaxJobCount=200000", f"MaxArraySize={JOBS + 1}", "MessageTimeout=100")
    )
    with _up(spec) as (folder, cluster):
        words = ["sbatch", "--parsable", f"--array=1-{JOBS}", "--begin=now+1day", "--output=/dev/null", "--wrap=true"]
        array = _run(cluster, *words).strip()
        # Until something of them differs the controller has one record of them all.
        _run(cluster, "scontrol", "update", f"jobid={array}_[1-{JOBS - 1}]", "nice=11")
        polls = [json.loads(_python(_POLL, str(folder))) for _ in range(ROUNDS)]
    taken_s = median(poll[0] for poll in polls)
    own_mib, squeues_mib = (max(poll[place] for poll in polls) for place in (1, 2))
    is_met = taken_s <= POLL_LIMIT_S and max(own_mib, squeues_mib) <= POLL_LIMIT_MIB
    print(
        f"one poll of {polls[0][3]} queued jobs: {taken_s:.2f} s, {own_mib:.0f} MiB, squeue's {squeues_mib:.0f} MiB; "
        f"goal <= {POLL_LIMIT_S:.0f} s and {POLL_LIMIT_MIB} MiB: {met(is_met)}"
    )
    return {"jobs": JOBS, "poll_s": taken_s, "poll_mib": own_mib, "poll_squeue_mib": squeues_mib}


def _many_nodes() -> dict[str, Any]:
    """Both clusters at once and each command in turn, so that a busy machine slows both alike."""
    results: dict[str, Any] = {"nodes": NODES}
    began = time.perf_counter()
    with _up(_cluster(NODES)) as many:
        results["nodes_up_s"] = time.perf_counter() - began
        with _up(_cluster(FEW)) as few:
            commands = _commands(NODES, *many), _commands(FEW, *few)
            for what in commands[0]:
                seconds, of_few = _in_turn(*(own[what] for own in commands))
                ratio = seconds / of_few
                print(
                    f"opsctl {what} on {NODES} nodes: {seconds * 1e3:.0f} ms, {ratio:.2f}x of {FEW} nodes; "
                    f"goal <= {NODES_RATIO_LIMIT:.0f}x: {met(ratio <= NODES_RATIO_LIMIT)}"
                )
                results[f"{what}_ratio"] = ratio
    print(f"{NODES} nodes were up in {results['nodes_up_s']:.1f} s")
    return results


def _cluster(count: int) -> Spec:
    return plain(f"nodes{count}", nodes=count, one_slurmd=count > FEW)


def _commands(count: int, folder: Path, cluster: Cluster) -> dict[str, Callable[[], None]]:
    """Return what is measured there, by name, with a chain in the queue."""
    write_run(folder / "run", name="bench")
    environment = {**cluster.environment(), "OPSCTL_CLUSTER": str(folder), "XDG_STATE_HOME": str(folder / "desk")}
    environment["OPSCTL_ANSWERS_AGE"] = "0"
    second = f"node{2:0{len(str(count))}}"

    def call(*words: str) -> None:
        command = [*opsctl(), *words]
        subprocess.run(command, cwd=folder / "run", env=environment, check=True, capture_output=True, timeout=120)

    def submit() -> None:
        call("cancel")
        call("submit", "--begin", "now+1day")

    def exclude() -> None:
        call("exclude", "add", second, "--why", "measured")
        call("exclude", "remove", second)

    call("submit", "--begin", "now+1day")
    return {
        "cancel and submit": submit,
        "status": lambda: call("status"),
        "queue": lambda: call("queue"),
        "watch nodes": lambda: call("watch", "nodes"),
        "nodes": lambda: call("nodes"),
        "exclude add and remove": exclude,
    }


def _in_turn(*what: Callable[[], None]) -> list[float]:
    """The median seconds of each."""
    taken: list[list[float]] = [[] for _ in what]
    for _ in range(ROUNDS):
        for seconds, do in zip(taken, what, strict=True):
            began = time.perf_counter()
            do()
            seconds.append(time.perf_counter() - began)
    return [median(seconds) for seconds in taken]


class _up:
    """A cluster in a folder of its own, gone afterwards."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))

    def __enter__(self) -> tuple[Path, Cluster]:
        up = lifecycle.up(self.spec, self.folder)
        return up.folder, up.cluster

    def __exit__(self, *_: object) -> None:
        lifecycle.down(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)


def _run(cluster: Cluster, *command: str) -> str:
    done = subprocess.run(command, env=cluster.environment(), check=True, capture_output=True, text=True, timeout=120)
    return done.stdout


def _python(code: str, *words: str) -> str:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
