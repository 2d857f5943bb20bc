"""Bringing a local cluster up and down."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import OpsctlError
from opsctl.files import locked
from opsctl.localcluster import accounting, configuration, daemons
from opsctl.localcluster.description import Description, read_description, write_description
from opsctl.localcluster.installation import Installation, find_installation
from opsctl.localcluster.places import Places, link_root, places_of, unlink_root
from opsctl.localcluster.ports import Ports, reserve
from opsctl.localcluster.processes import end, pid_of, processes_of
from opsctl.localcluster.spec import MAX_NODES, Reservation, Spec
from opsctl.slurm.cluster import Cluster

Progress = Callable[[str], None]


@dataclass(frozen=True)
class LocalCluster:
    """A cluster that is up."""

    folder: Path
    cluster: Cluster
    spec: Spec
    ports: Ports
    was_up: bool = False


def up(spec: Spec, folder: Path, progress: Progress = lambda line: None) -> LocalCluster:
    """Start what of the cluster in `folder` is not running yet and wait until every node is idle.

    Jobs of an earlier life of the same folder and spec are recovered. When anything fails, everything it started is ended.
    Raises OpsctlError (SlurmMissing where there is no Slurm).
    """
    if not 1 <= len(spec.node_names) <= MAX_NODES:
        raise OpsctlError(f"{len(spec.node_names)} nodes asked for: a local cluster has 1 to {MAX_NODES}")
    installation = find_installation(spec.slurm_prefix, spec.accounting)
    user = _user_name()
    folder.mkdir(parents=True, exist_ok=True)
    places = places_of(folder)
    with locked(places.lock, 60, f"bring the cluster in {places.folder} up"):
        before = read_description(places)
        running = processes_of(places)
        if running and before is not None and before.spec != spec:
            raise OpsctlError(
                f"the cluster in {places.folder} is up with another shape ({before.spec.shape}): take it down first, "
                "or choose another --name"
            )
        if before is not None and running and _missing(spec, places) == []:
            return LocalCluster(places.folder, before.cluster, spec, before.ports, was_up=True)
        with reserve(len(spec.node_names), before.ports if before else None) as found:
            ports = before.ports if before is not None and running else found
            cluster = Cluster(spec.name, str(places.slurm_conf), installation.bin_folders, installation.library_folders)
            fresh = before is None or before.spec != spec or not (places.folder / "state" / "node_state").exists()
            try:
                if fresh:
                    _forget(places)
                _lay_out(spec, places, ports, installation, user)
                write_description(places, Description(cluster, spec, ports, user))
                _start(spec, places, ports, installation, cluster, user, fresh, progress)
            except BaseException:
                end([process.pid for process in processes_of(places)], grace_s=2)
                raise
    return LocalCluster(places.folder, cluster, spec, ports)


def down(folder: Path, progress: Progress = lambda line: None) -> int:
    """End every process of the cluster in `folder`, jobs first. Returns how many there were; 0 when it was not up.

    The folder stays, with its logs and its queue. Raises OpsctlError when a process does not go.
    """
    places = places_of(folder)
    if not places.folder.is_dir():
        return 0
    with locked(places.lock, 60, f"take the cluster in {places.folder} down"):
        ended = _end_all(places, progress)
        unlink_root(places)
    return ended


def _end_all(places: Places, progress: Progress) -> int:
    ended: set[int] = set()
    deadline = time.monotonic() + 30
    while left := processes_of(places):
        if time.monotonic() > deadline:
            shown = ", ".join(f"{process.pid} ({process.command})" for process in left[:3])
            raise OpsctlError(f"{len(left)} processes of the cluster in {places.folder} do not end: {shown}")
        if not ended:
            progress(f"ending {len(left)} processes")
        ended |= {process.pid for process in left}
        # The controller first, so that it neither requeues what dies next nor loses its state; then who could start more.
        for kind, first in (("daemon", signal.SIGTERM), ("task", signal.SIGTERM), ("step", signal.SIGKILL)):
            pids = [process.pid for process in left if process.kind == kind]
            if kind == "daemon":
                database = {pid for name in ("mariadbd", "munged", "slurmdbd") if (pid := pid_of(places, name))}
                end([pid for pid in pids if pid not in database], grace_s=5, first=first)
                for name in ("slurmdbd", "mariadbd", "munged"):
                    if pid := pid_of(places, name):
                        end([pid], grace_s=10, first=first)
            elif pids:
                end(pids, grace_s=2, first=first)
    return len(ended)


def start_daemon(folder: Path, daemon: str, timeout_s: float = 60) -> None:
    """Start one daemon of a cluster again, named as its log is, and wait until every node can take a job."""
    places = places_of(folder)
    description = read_description(places)
    if description is None:
        raise OpsctlError(f"no cluster in {folder}: opsctl local-cluster up")
    spec = description.spec
    installation = find_installation(spec.slurm_prefix, spec.accounting)
    environment = daemons.daemon_environment(installation.bin_folders, installation.library_folders, places.slurm_conf)
    if pid_of(places, daemon) is not None:
        return
    if daemon == "slurmctld":
        start_slurmctld(places, installation, environment, description.ports, fresh=False)
    elif daemon.startswith("slurmd-") and daemon.removeprefix("slurmd-") in spec.node_names:
        start_slurmd(places, installation, environment, daemon.removeprefix("slurmd-"))
    else:
        raise OpsctlError(f"no daemon {daemon!r} to start: slurmctld or slurmd-NODE")


def kill_node(folder: Path, node: str) -> None:
    """End a node as a power cut would: its slurmd, its steps and all they run, with SIGKILL, at once."""
    places = places_of(folder)
    slurmd = pid_of(places, f"slurmd-{node}")
    pids = [process.pid for process in processes_of(places) if process.node == node]
    end([*([slurmd] if slurmd else []), *pids], grace_s=0, first=signal.SIGKILL)


def continue_all(folder: Path) -> None:
    """SIGCONT to every daemon, in case one was stopped."""
    for process in processes_of(places_of(folder)):
        if process.kind == "daemon":
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise OpsctlError(
            f"user {os.getuid()} has no name on this machine, and Slurm needs one: add it to /etc/passwd"
        ) from None


def _forget(places: Places) -> None:
    """Remove what an earlier cluster of another shape left: slurmctld refuses another cluster's state."""
    for name in ("state", "spool", "db", "log", "pid"):
        shutil.rmtree(places.folder / name, ignore_errors=True)


def _lay_out(spec: Spec, places: Places, ports: Ports, installation: Installation, user: str) -> None:
    """Folders, key, GPU files and configuration. Other users must get through to the socket, and only the owner to the secrets."""
    link_root(places)
    host = socket.gethostname().split(".")[0]
    with contextlib.suppress(PermissionError):
        places.folder.chmod(0o755)
    for folder, mode in (
        (places.munge, 0o711),
        (places.state, 0o700),
        (places.spool, 0o755),
        (places.logs, 0o755),
        (places.pids, 0o755),
        (places.gpus, 0o755),
    ):
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
    for name in spec.node_names:
        (places.spool / name).mkdir(exist_ok=True)
    for number in range(spec.gpus_per_node):
        (places.gpus / str(number)).touch(mode=0o666)
    _write(places.slurm_conf, configuration.slurm_conf(spec, places, ports, host, user, installation.version), 0o644)
    _write(places.root / "gres.conf", configuration.gres_conf(spec, places), 0o644)
    cgroup = configuration.cgroup_conf(installation.version)
    if cgroup is not None:
        _write(places.root / "cgroup.conf", cgroup, 0o644)
    if spec.accounting:
        _write(places.root / "slurmdbd.conf", configuration.slurmdbd_conf(places, ports, host, user), 0o600)
    for key in (places.munge / "munge.key", places.root / "slurm.key"):
        if not key.exists():
            with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(os.urandom(1024))


def _write(path: Path, text: str, mode: int) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)


def expected_daemons(spec: Spec) -> list[str]:
    """The names of the daemons of a whole cluster, in the order they start; they name pid files and logs too."""
    database = ["mariadbd", "slurmdbd"] if spec.accounting else []
    return ["munged", *database, "slurmctld", *(f"slurmd-{node}" for node in spec.node_names)]


def _missing(spec: Spec, places: Places) -> list[str]:
    return [name for name in expected_daemons(spec) if pid_of(places, name) is None]


def _start(
    spec: Spec,
    places: Places,
    ports: Ports,
    installation: Installation,
    cluster: Cluster,
    user: str,
    fresh: bool,
    progress: Progress,
) -> None:
    environment = daemons.daemon_environment(installation.bin_folders, installation.library_folders, places.slurm_conf)
    missing = set(_missing(spec, places))
    if "munged" in missing:
        progress("munge")
        _start_munged(places, installation, environment)
    if spec.accounting:
        accounting.start(places, ports, installation, environment, missing, user, progress)
        accounting.register_cluster(spec, installation, cluster.environment())
    if "slurmctld" in missing:
        progress("slurmctld")
        start_slurmctld(places, installation, environment, ports, fresh)
    nodes = [node for node in spec.node_names if f"slurmd-{node}" in missing]
    for number, node in enumerate(nodes, 1):
        if number == 1 or number % 10 == 0:
            progress(f"slurmd {number} of {len(nodes)}")
        start_slurmd(places, installation, environment, node)
    if spec.accounting:
        accounting.add_people(spec, installation, cluster.environment(), user)
    await_nodes(spec, places, installation, cluster, progress)
    for reservation in spec.reservations:
        _reserve(reservation, spec, installation, cluster, user)


def _start_munged(places: Places, installation: Installation, environment: dict[str, str]) -> None:
    places.munge_socket.unlink(missing_ok=True)
    command = [
        installation["munged"],
        "--force",
        f"--socket={places.munge_socket}",
        f"--key-file={places.munge / 'munge.key'}",
    ]
    command += [
        f"--pid-file={places.pid_file('munged')}",
        f"--log-file={places.log('munged')}",
        f"--seed-file={places.munge / 'munged.seed'}",
    ]
    daemons.start(places, "munged", command, environment)
    daemons.await_ready("munged", places.log("munged"), lambda: daemons.answers(places.munge_socket), lambda: True, 10)


def start_slurmctld(
    places: Places, installation: Installation, environment: dict[str, str], ports: Ports, fresh: bool
) -> None:
    """Start the controller and wait until it listens. `fresh` forgets the jobs of an earlier life."""
    daemons.start(places, "slurmctld", [installation["slurmctld"], *(["-c"] if fresh else [])], environment)
    daemons.await_ready(
        "slurmctld",
        places.log("slurmctld"),
        lambda: daemons.listens(ports.slurmctld),
        lambda: daemons.may_be_starting(places, "slurmctld"),
        30,
    )


def start_slurmd(places: Places, installation: Installation, environment: dict[str, str], node: str) -> None:
    """Start one node; it registers with the controller by itself."""
    daemons.start(places, f"slurmd-{node}", [installation["slurmd"], "-N", node], environment)


def await_nodes(
    spec: Spec, places: Places, installation: Installation, cluster: Cluster, progress: Progress, timeout_s: float = 60
) -> None:
    """Wait until every node can take a job. Raises OpsctlError quoting the log of one that cannot."""
    deadline = time.monotonic() + timeout_s
    while True:
        states = node_states(installation["sinfo"], cluster)
        waiting = [
            node
            for node in spec.node_names
            if states.get(node, "unknown") not in ("idle", "mixed", "allocated", "completing", "reserved")
        ]
        if not waiting:
            return
        dead = [node for node in waiting if not daemons.may_be_starting(places, f"slurmd-{node}")]
        if dead or time.monotonic() > deadline:
            node = (dead or waiting)[0]
            what = (
                "ended while starting"
                if dead
                else f"is {states.get(node, 'unknown to slurmctld')} after {timeout_s:g} s"
            )
            raise OpsctlError(f"node {node} {what}: {daemons.complaint(places.log(f'slurmd-{node}'))}")
        progress(f"nodes ready: {len(spec.node_names) - len(waiting)} of {len(spec.node_names)}")
        time.sleep(0.05)


def node_states(sinfo: str, cluster: Cluster) -> dict[str, str]:
    """Node -> state as sinfo says it, with its `*` or `~` marks; empty while the controller does not answer."""
    try:
        answer = subprocess.run(
            [sinfo, "-h", "-N", "-o", "%N %T"], capture_output=True, text=True, timeout=20, env=cluster.environment()
        )
    except subprocess.TimeoutExpired:
        return {}
    return dict(line.split(maxsplit=1) for line in answer.stdout.splitlines() if " " in line)


def _reserve(reservation: Reservation, spec: Spec, installation: Installation, cluster: Cluster, user: str) -> None:
    who = f"Accounts={','.join(reservation.accounts)}" if spec.accounting and reservation.accounts else f"Users={user}"
    words = [
        f"ReservationName={reservation.name}",
        f"Nodes={reservation.nodes}",
        who,
        "StartTime=now",
        "Duration=UNLIMITED",
    ]
    if reservation.flags:
        words.append(f"Flags={reservation.flags}")
    answer = subprocess.run(
        [installation["scontrol"], "create", "reservation", *words],
        capture_output=True,
        text=True,
        timeout=20,
        env=cluster.environment(),
    )
    if (
        answer.returncode
        and "already exists" not in answer.stderr + answer.stdout
        and "Duplicate" not in answer.stderr + answer.stdout
    ):
        raise OpsctlError(f"cannot make the reservation {reservation.name}: {(answer.stderr or answer.stdout).strip()}")
