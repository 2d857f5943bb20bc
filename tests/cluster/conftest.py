"""A real Slurm for the whole session: four nodes, two make-believe GPUs each, in a short folder others can reach."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from opsctl.core.errors import SlurmMissing
from opsctl.local.cluster import lifecycle, startup
from opsctl.local.cluster.daemons import pid_of
from opsctl.local.cluster.files import Places, places_of
from opsctl.local.cluster.installation import Installation, find_installation
from opsctl.local.cluster.spec import Spec, plain
from opsctl.slurm.cluster import Cluster
from tests.cluster import single_daemons
from tests.cluster.jean_zay import add_accounts, jean_zay

#: A killed slurmd's node is DOWN after about this many seconds and a ping's distance.
SPEC = replace(plain("test"), slurmd_timeout_s=12)

#: Waits for the end of its input, which is ours, however we end; then takes a cluster down and removes its folder.
_GUARD = """
import shutil, sys
from pathlib import Path
from opsctl.local.cluster.lifecycle import down
sys.stdin.read()
folder = Path(sys.argv[1])
down(folder)
shutil.rmtree(folder, ignore_errors=True)
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)


def wait_until(predicate: Callable[[], object], timeout_s: float = 60, what: str = "the condition") -> object:
    """Poll until `predicate()` is true and return its result; fail the test, naming `what`, if that takes too long.

    `timeout_s` is the limit on an idle machine. A machine with other work may take several times as long.
    """
    longest_s = max(timeout_s, min(6 * timeout_s, 240))
    deadline = time.monotonic() + longest_s
    while not (value := predicate()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {longest_s:g} s for {what}")
        time.sleep(0.1)
    return value


@dataclass(frozen=True)
class RunningCluster:
    """A local cluster under test. Daemons are named as their logs are: "slurmctld", "slurmd-node1"."""

    folder: Path
    cluster: Cluster
    installation: Installation

    @property
    def places(self) -> Places:
        return places_of(self.folder)

    def environment(self) -> dict[str, str]:
        return self.cluster.environment()

    def run(
        self,
        *words: str | Path,
        user: str | None = None,
        check: bool = True,
        timeout_s: float = 90,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command with the cluster's environment, as `user` (root only) if given."""
        command = [str(word) for word in words]
        environment = self.environment()
        if user is not None:
            command = ["runuser", "-u", user, "--", *command]
            environment |= {"HOME": pwd.getpwnam(user).pw_dir, "USER": user, "LOGNAME": user}
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout_s, input=input
        )
        if check and answer.returncode:
            pytest.fail(f"{' '.join(command)} -> {answer.returncode}: {answer.stderr}{answer.stdout}")
        return answer

    def sbatch(self, script: str, *options: str, user: str | None = None) -> int:
        """Submit `script` (its body, without the first line) and return the job id."""
        fixed = ["--parsable", "--output=/dev/null", "--chdir=/"]
        answer = self.run("sbatch", *fixed, *options, user=user, input=f"#!/bin/bash\n{script}\n")
        return int(answer.stdout.split(";")[0])

    def would_start(self, script: str) -> str:
        """Slurm's line on when and where it would start `script`, or why it would not."""
        answer = self.run("sbatch", "--test-only", input=script, check=False)
        return answer.stderr + answer.stdout

    def job_state(self, job_id: int) -> str:
        """Slurm's state of a job (of any array task with this id); "" when Slurm has forgotten it."""
        answer = self.run("squeue", "-h", "-t", "all", "-j", str(job_id), "-o", "%T", check=False)
        return answer.stdout.split("\n")[0].strip()

    def wait_for_state(self, job_id: int, *states: str, timeout_s: float = 90) -> str:
        """Wait until the job is in one of `states` and return it."""

        def reached() -> str:
            state = self.job_state(job_id)
            return state if state in states else ""

        return str(wait_until(reached, timeout_s, f"job {job_id} to be {' or '.join(states)}"))

    def cancel_everything(self) -> None:
        """End all jobs without grace and wait until none is left and every node is idle."""

        def nothing_left() -> bool:
            jobs = sorted(set(self.run("squeue", "-h", "-o", "%A").stdout.split()))
            if jobs:
                self.run("scancel", *jobs, check=False)
                self.run("scancel", "--full", "--signal=KILL", *jobs, check=False)
            return not jobs

        wait_until(nothing_left, 120, "all jobs to end")
        for node, state in self.node_states().items():
            if state.startswith("drain"):
                self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        wait_until(self.all_idle, 120, "all nodes to be idle")

    def node_states(self) -> dict[str, str]:
        return startup.node_states("sinfo", self.cluster)

    def all_idle(self) -> bool:
        return set(self.node_states().values()) == {"idle"}

    def pid(self, daemon: str) -> int | None:
        """The daemon's process id; None when it is not running."""
        return pid_of(self.places, daemon)

    def send(self, daemon: str, number: signal.Signals) -> None:
        pid = self.pid(daemon)
        assert pid is not None, f"{daemon} is not running"
        os.kill(pid, number)

    def kill(self, daemon: str) -> None:
        """End a daemon and wait until it is gone. A slurmd with kill -9: its steps and tasks live on, as after a crash.

        slurmctld with SIGTERM: it writes its state with a delay of seconds, and by -9 would forget the newest jobs.
        """
        self.send(daemon, signal.SIGTERM if daemon == "slurmctld" else signal.SIGKILL)
        wait_until(lambda: self.pid(daemon) is None, 60, f"{daemon} to be gone")

    def kill_node(self, node: str) -> None:
        """kill -9 of a whole node: slurmd, the steps on it and everything they run."""
        single_daemons.kill_node(self.folder, node)

    def start(self, daemon: str) -> None:
        """Start a daemon that was killed; the controller recovers its jobs."""
        single_daemons.start_daemon(self.folder, daemon)

    def lose_state(self) -> None:
        """Restart the controller without what it has saved: its jobs are gone, and their ids start again."""
        self.kill("slurmctld")
        shutil.rmtree(self.places.state)
        self.places.state.mkdir()
        self.start("slurmctld")

    @contextlib.contextmanager
    def stopped(self, daemon: str) -> Iterator[None]:
        """The daemon hangs (SIGSTOP) inside the block."""
        self.send(daemon, signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(daemon, signal.SIGCONT)

    @contextlib.contextmanager
    def killed(self, daemon: str) -> Iterator[None]:
        """The daemon is gone inside the block, and back after it."""
        self.kill(daemon)
        try:
            yield
        finally:
            self.start(daemon)


@contextlib.contextmanager
def guarded_folder() -> Iterator[Path]:
    """A new folder with a short path (sockets), that other Unix users may traverse, for one cluster.

    When the block ends, or pytest does, by whatever signal, the cluster is taken down and the folder removed.
    """
    folder = Path(tempfile.mkdtemp(prefix="oc", dir="/tmp"))
    folder.chmod(0o755)
    guard = subprocess.Popen([sys.executable, "-c", _GUARD, str(folder)], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield folder
    finally:
        guard.communicate(timeout=90)
    assert guard.returncode == 0, f"the cluster in {folder} did not come down"


@pytest.fixture(scope="session")
def slurm() -> Installation:
    """The machine's Slurm, or a skip that says what is missing."""
    try:
        return find_installation()
    except SlurmMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def session_cluster(slurm: Installation) -> Iterator[RunningCluster]:
    with guarded_folder() as folder:
        up = lifecycle.up(SPEC, folder)
        yield RunningCluster(up.folder, up.cluster, slurm)


@pytest.fixture(scope="session")
def accounting_cluster(slurm: Installation) -> Iterator[RunningCluster]:
    """The cluster of the shipped examples with slurmdbd, which takes seconds to start: its files share a worker."""
    try:
        installation = find_installation(accounting=True)
    except SlurmMissing as error:
        pytest.skip(str(error))
    with guarded_folder() as folder:
        up = lifecycle.up(jean_zay("jz", accounting=True), folder)
        cluster = RunningCluster(up.folder, up.cluster, installation)
        add_accounts(cluster)
        yield cluster


@pytest.fixture
def local_cluster(session_cluster: RunningCluster) -> Iterator[RunningCluster]:
    """The session's cluster, 4 nodes x 2, with every daemon alive and no job; each test leaves it so."""
    yield session_cluster
    mend(session_cluster, SPEC)


def mend(cluster: RunningCluster, spec: Spec) -> None:
    """Have every daemon alive and no job left."""
    single_daemons.continue_all(cluster.folder)
    lifecycle.up(spec, cluster.folder)
    cluster.cancel_everything()


@pytest.fixture
def cluster_folder(slurm: Installation) -> Iterator[Path]:
    """An empty folder for a cluster of the test's own, taken down whatever happens."""
    with guarded_folder() as folder:
        yield folder
