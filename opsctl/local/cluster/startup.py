"""Start the daemons of a local cluster in order, and wait for each."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

from opsctl.core.errors import OpsctlError, SlurmUnreachable
from opsctl.local.cluster import daemons
from opsctl.local.cluster.daemons import pid_of
from opsctl.local.cluster.files import Description, Places
from opsctl.local.cluster.installation import Installation
from opsctl.local.cluster.spec import Spec
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.process import run_slurm

#: The account of the user's jobs in a cluster with accounting.
ACCOUNT = "opsctl"
#: sacctmgr's messages if an entry already exists.
_NOTHING_TO_DO = ("Nothing new added", "already exists")


Progress = Callable[[str], None]

#: States of a node that has not registered (also any with `*`) or cannot be used. Drained is a user's choice.
_NOT_READY_STATES = ("unknown", "down", "inval", "error", "future")
_NODES_TIMEOUT_S = 60.0


def expected_daemons(spec: Spec) -> list[str]:
    """Return the names of a cluster's daemons in starting order; pid files and logs have the same names."""
    database = ["mariadbd", "slurmdbd"] if spec.accounting else []
    return ["munged", *database, "slurmctld", *(f"slurmd-{node}" for node in spec.slurmd_names)]


def missing_daemons(spec: Spec, places: Places) -> list[str]:
    """Return the expected daemons that do not run."""
    return [name for name in expected_daemons(spec) if pid_of(places, name) is None]


@dataclass(frozen=True)
class Starter:
    """Starts the daemons of one cluster."""

    places: Places
    description: Description
    installation: Installation

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of daemons."""
        found = self.installation
        return daemons.daemon_environment(found.bin_folders, found.library_folders, self.places.slurm_conf)

    @property
    def client_environment(self) -> dict[str, str]:
        """Return the environment of Slurm's commands, for opsctl and users."""
        return self.description.cluster.environment()

    def start_missing(self, fresh: bool, progress: Progress) -> None:
        """Start the missing daemons, and wait until every node is ready. `fresh` starts with an empty queue."""
        spec, user = self.description.spec, self.description.user
        missing = set(missing_daemons(spec, self.places))
        if "munged" in missing:
            progress("munge")
            self.start_munged()
        if spec.accounting:
            self.start_database(missing, progress)
            # slurmctld exits if slurmdbd does not know its cluster.
            self._sacctmgr("add", "cluster", spec.slurm_name)
        if "slurmctld" in missing:
            progress("slurmctld")
            self.start_slurmctld(fresh)
        nodes = [node for node in spec.slurmd_names if f"slurmd-{node}" in missing]
        for number, node in enumerate(nodes, 1):
            progress(f"slurmd {number} of {len(nodes)}")
            self.start_slurmd(node)
        if spec.accounting:
            progress("accounts")
            cluster = f"Cluster={spec.slurm_name}"
            self._sacctmgr("add", "account", ACCOUNT, cluster)
            self._sacctmgr("add", "user", user, f"Account={ACCOUNT}", cluster, f"DefaultAccount={ACCOUNT}")
        self.await_nodes(progress)

    def start_munged(self) -> None:
        """Start munged and wait until its socket answers."""
        places = self.places
        places.munge_socket.unlink(missing_ok=True)
        # --force: a group-writable parent folder is a warning, not an error.
        command = [self.installation["munged"], "--force", f"--socket={places.munge_socket}"]
        command += [f"--key-file={places.munge / 'munge.key'}", f"--seed-file={places.munge / 'munged.seed'}"]
        command += [f"--pid-file={places.pid_file('munged')}", f"--log-file={places.log('munged')}"]
        self._start("munged", command, lambda: daemons.answers(places.munge_socket))

    def start_database(self, missing: set[str], progress: Progress) -> None:
        """Start the `missing` ones of database and slurmdbd."""
        places, environment = self.places, dict(self.environment)
        if "mariadbd" in missing:
            progress("database")
            places.database_scratch.mkdir(mode=0o700, exist_ok=True)
            environment["TMPDIR"] = str(places.database_scratch)
            self._make_database(environment)
            places.database_socket.unlink(missing_ok=True)
            command = [self.installation["mariadbd"], "--no-defaults", "--skip-networking"]
            command += [f"--user={self.description.user}", f"--datadir={places.database}"]
            command += [f"--socket={places.database_socket}", f"--pid-file={places.pid_file('mariadbd')}"]
            command += ["--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900", "--performance-schema=OFF"]
            # A local cluster need not keep its last jobs through a power cut.
            command += ["--innodb-flush-log-at-trx-commit=0"]
            daemons.start(places, "mariadbd", command, environment, detach=True)
            self._await("mariadbd", self._database_answers, 60)
        if "slurmdbd" in missing:
            progress("slurmdbd")
            with_socket = {**self.environment, "MYSQL_UNIX_PORT": str(places.database_socket)}
            daemons.start(places, "slurmdbd", [self.installation["slurmdbd"]], with_socket)
            self._await("slurmdbd", lambda: daemons.listens(self.description.ports.slurmdbd), 60)

    def _make_database(self, environment: dict[str, str]) -> None:
        """Create the system tables under a temporary name, with one account without password: the Unix user's."""
        if self.places.database.is_dir():
            return
        user, new = self.description.user, self.places.database.with_name("db.new")
        shutil.rmtree(new, ignore_errors=True)
        command = [self.installation["mariadb-install-db"], "--no-defaults", f"--datadir={new}", "--skip-test-db"]
        command += ["--skip-name-resolve", "--auth-root-authentication-method=socket"]
        command += [f"--auth-root-socket-user={user}", f"--user={user}"]
        daemons.start(self.places, "mariadbd", command, environment, timeout_s=60)
        new.rename(self.places.database)

    def _database_answers(self) -> bool:
        return daemons.answers(self.places.database_socket) and pid_of(self.places, "mariadbd") is not None

    def start_slurmctld(self, fresh: bool) -> None:
        """Start the controller and wait until it listens. `fresh` discards earlier jobs."""
        port = self.description.ports.slurmctld
        command = [self.installation["slurmctld"], *(["-c"] if fresh else [])]
        self._start("slurmctld", command, lambda: daemons.listens(port))

    def start_slurmd(self, node: str) -> None:
        """Start one node; it registers with the controller by itself."""
        stepd = ["-d", self.installation.stepd] if self.installation.stepd else []
        self._start(f"slurmd-{node}", [self.installation["slurmd"], *stepd, "-N", node])

    def _start(self, daemon: str, command: list[str], is_ready: Callable[[], bool] = lambda: True) -> None:
        daemons.start(self.places, daemon, command, self.environment)
        self._await(daemon, is_ready, 30)

    def _await(self, daemon: str, is_ready: Callable[[], bool], timeout_s: float) -> None:
        alive = lambda: daemons.may_be_starting(self.places, daemon)  # noqa: E731
        daemons.await_ready(daemon, self.places.log(daemon), is_ready, alive, timeout_s)

    def await_nodes(self, progress: Progress = lambda _line: None, timeout_s: float = _NODES_TIMEOUT_S) -> None:
        """Wait until every node can take a job. Raises OpsctlError with the log of a node that cannot."""
        nodes = self.description.spec.node_names
        deadline = time.monotonic() + timeout_s
        while True:
            states = node_states(self.installation["sinfo"], self.description.cluster)
            waiting = [node for node in nodes if not is_ready(states.get(node, "unknown"))]
            if not waiting:
                return
            progress(f"nodes ready: {len(nodes) - len(waiting)} of {len(nodes)}")
            own = set(self.description.spec.slurmd_names).intersection(waiting)
            dead = [node for node in own if not daemons.may_be_starting(self.places, f"slurmd-{node}")]
            if dead or time.monotonic() > deadline:
                node = (dead or waiting)[0]
                what = (
                    "ended while starting"
                    if dead
                    else f"is {states.get(node, 'unknown to slurmctld')} after {timeout_s:g} s"
                )
                raise OpsctlError(f"node {node} {what}: {daemons.complaint(self.places.log(f'slurmd-{node}'))}")
            time.sleep(0.05)

    def _sacctmgr(self, *words: str) -> None:
        answer = run_slurm([self.installation["sacctmgr"], "-i", *words], self.client_environment, 30)
        if answer.code and not any(text in answer.stdout + answer.stderr for text in _NOTHING_TO_DO):
            raise OpsctlError(f"sacctmgr {' '.join(words)}: {answer.words()}")


def is_ready(state: str) -> bool:
    """Return True if a node in this state has a slurmd that registered."""
    return not state.endswith("*") and not state.startswith(_NOT_READY_STATES)


def node_states(sinfo: str, cluster: Cluster, timeout_s: float = 20) -> dict[str, str]:
    """Return node -> state as in sinfo, with `*` and other marks; empty if the controller does not answer in time."""
    try:
        answer = run_slurm([sinfo, "-h", "-N", "-o", "%N %T"], cluster.environment(), timeout_s)
    except SlurmUnreachable:
        return {}
    return dict(line.split(maxsplit=1) for line in answer.stdout.splitlines() if " " in line)
