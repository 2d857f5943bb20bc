"""Starting the daemons of a laid-out cluster in their order, each awaited."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from opsctl.core.errors import OpsctlError, SlurmUnreachable
from opsctl.local.cluster import accounting, daemons
from opsctl.local.cluster.description import Description
from opsctl.local.cluster.files import Places
from opsctl.local.cluster.installation import Installation
from opsctl.local.cluster.processes import pid_of
from opsctl.local.cluster.spec import Reservation, Spec
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.process import Answer, run_slurm

Progress = Callable[[str], None]

#: States of a node that has not registered (any with `*` besides) or cannot be used. Drained is somebody's choice.
_NOT_READY_STATES = ("unknown", "down", "inval", "error", "future")
_NODES_TIMEOUT_S = 60.0


def expected_daemons(spec: Spec) -> list[str]:
    """The names of the daemons of a whole cluster, in the order they start; they name pid files and logs too."""
    database = ["mariadbd", "slurmdbd"] if spec.accounting else []
    return ["munged", *database, "slurmctld", *(f"slurmd-{node}" for node in spec.slurmd_names)]


def missing_daemons(spec: Spec, places: Places) -> list[str]:
    """Those of `expected_daemons` that do not run."""
    return [name for name in expected_daemons(spec) if pid_of(places, name) is None]


@dataclass(frozen=True)
class Starter:
    """Starts the daemons of one cluster."""

    places: Places
    description: Description
    installation: Installation

    @property
    def environment(self) -> dict[str, str]:
        """What daemons see."""
        found = self.installation
        return daemons.daemon_environment(found.bin_folders, found.library_folders, self.places.slurm_conf)

    @property
    def client_environment(self) -> dict[str, str]:
        """What Slurm's commands see, ours as any user's."""
        return self.description.cluster.environment()

    def start_missing(self, fresh: bool, progress: Progress) -> None:
        """Start what does not run, and wait until every node is ready. `fresh` starts with an empty queue."""
        spec, user = self.description.spec, self.description.user
        missing = set(missing_daemons(spec, self.places))
        if "munged" in missing:
            progress("munge")
            self.start_munged()
        if spec.accounting:
            accounting.start(
                self.places, self.description.ports, self.installation, self.environment, missing, user, progress
            )
            accounting.register_cluster(spec, self.installation, self.client_environment)
        if "slurmctld" in missing:
            progress("slurmctld")
            self.start_slurmctld(fresh)
        nodes = [node for node in spec.slurmd_names if f"slurmd-{node}" in missing]
        for number, node in enumerate(nodes, 1):
            progress(f"slurmd {number} of {len(nodes)}")
            self.start_slurmd(node)
        if spec.accounting:
            progress("accounts")
            accounting.add_people(spec, self.installation, self.client_environment, user)
        self.await_nodes(progress)
        for reservation in spec.reservations:
            self.reserve(reservation)

    def start_munged(self) -> None:
        """Start munged and wait until its socket answers."""
        places = self.places
        places.munge_socket.unlink(missing_ok=True)
        # --force: a group-writable folder above ours is a warning, not the end.
        command = [self.installation["munged"], "--force", f"--socket={places.munge_socket}"]
        command += [f"--key-file={places.munge / 'munge.key'}", f"--seed-file={places.munge / 'munged.seed'}"]
        command += [f"--pid-file={places.pid_file('munged')}", f"--log-file={places.log('munged')}"]
        self._start("munged", command, lambda: daemons.answers(places.munge_socket))

    def start_slurmctld(self, fresh: bool) -> None:
        """Start the controller and wait until it listens. `fresh` forgets the jobs of an earlier life."""
        port = self.description.ports.slurmctld
        command = [self.installation["slurmctld"], *(["-c"] if fresh else [])]
        self._start("slurmctld", command, lambda: daemons.listens(port))

    def start_slurmd(self, node: str) -> None:
        """Start one node; it registers with the controller by itself."""
        stepd = ["-d", self.installation.stepd] if self.installation.stepd else []
        self._start(f"slurmd-{node}", [self.installation["slurmd"], *stepd, "-N", node])

    def _start(self, daemon: str, command: list[str], is_ready: Callable[[], bool] = lambda: True) -> None:
        daemons.start(self.places, daemon, command, self.environment)
        alive = lambda: daemons.may_be_starting(self.places, daemon)  # noqa: E731
        daemons.await_ready(daemon, self.places.log(daemon), is_ready, alive, 30)

    def await_nodes(self, progress: Progress = lambda _line: None, timeout_s: float = _NODES_TIMEOUT_S) -> None:
        """Wait until every node can take a job. Raises OpsctlError quoting the log of one that cannot."""
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

    def reserve(self, reservation: Reservation) -> None:
        """Make a reservation, if it is not there from an earlier life."""
        spec, user = self.description.spec, self.description.user
        who = (
            f"Accounts={','.join(reservation.accounts)}"
            if spec.accounting and reservation.accounts
            else f"Users={user}"
        )
        words = [f"ReservationName={reservation.name}", f"Nodes={reservation.nodes}", who, "StartTime=now"]
        words.append("Duration=UNLIMITED")
        if reservation.flags:
            words.append(f"Flags={reservation.flags}")
        shown = self._scontrol("show", "reservation", reservation.name)
        if shown.code == 0 and f"ReservationName={reservation.name} " in shown.stdout:
            return
        made = self._scontrol("create", "reservation", *words)
        if made.code:
            raise OpsctlError(f"cannot make the reservation {reservation.name}: {made.words()}")

    def _scontrol(self, *words: str) -> Answer:
        return run_slurm([self.installation["scontrol"], *words], self.client_environment, 20)


def is_ready(state: str) -> bool:
    """Whether a node in this state has a slurmd that registered."""
    return not state.endswith("*") and not state.startswith(_NOT_READY_STATES)


def node_states(sinfo: str, cluster: Cluster, timeout_s: float = 20) -> dict[str, str]:
    """Node -> state as sinfo says it, with `*` and other marks; empty when the controller does not answer in time."""
    try:
        answer = run_slurm([sinfo, "-h", "-N", "-o", "%N %T"], cluster.environment(), timeout_s)
    except SlurmUnreachable:
        return {}
    return dict(line.split(maxsplit=1) for line in answer.stdout.splitlines() if " " in line)
