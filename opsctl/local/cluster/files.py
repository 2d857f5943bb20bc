"""The files of one local cluster, all in its folder, and its description in cluster.json."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import read_whole, write_state
from opsctl.local.cluster.ports import Ports
from opsctl.local.cluster.spec import Spec
from opsctl.slurm.cluster import CLUSTER_FILE, Cluster

#: A Unix socket's path has at most 107 bytes; the longest one in the folder is spool/NODE/NODE_JOB.STEP with its
#: numbers: two node names and about 35 more.
_LONGEST_FOLDER = 40
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/-]+")


@dataclass(frozen=True)
class Places:
    """The paths of one cluster, most of them below `root`."""

    folder: Path  # the real path
    root: Path  # the path in the configuration: the same, or a short link to it
    # Below `folder`, because they are used before the link exists.
    description: Path = field(init=False)  # the cluster as the last `up` started it
    lock: Path = field(init=False)  # held by `up` and `down`
    slurm_conf: Path = field(init=False)  # gres.conf and the others are stored next to it
    munge: Path = field(init=False)  # munged's key, seed and socket; mode 0711, so that every user reaches the socket
    munge_socket: Path = field(init=False)
    state: Path = field(init=False)  # slurmctld's queue, which is kept after `down`; mode 0700
    spool: Path = field(init=False)  # of the slurmds, a folder for each node
    logs: Path = field(init=False)  # `log` returns a daemon's
    pids: Path = field(init=False)  # `pid_file` returns a daemon's
    gpus: Path = field(init=False)  # empty files 0, 1, ...: the devices that Slurm hands out as GPUs on every node
    database: Path = field(init=False)  # mariadbd's data; only with accounting
    database_scratch: Path = field(init=False)  # its own folder, because temporary tables are named by process id
    database_socket: Path = field(init=False)  # mariadbd listens on no port

    def __post_init__(self) -> None:
        names = {
            **{"slurm_conf": "slurm.conf", "munge": "munge", "munge_socket": "munge/munge.sock", "state": "state"},
            **{"spool": "spool", "logs": "log", "pids": "pid", "gpus": "gpu", "database": "db"},
            **{"database_scratch": "db.tmp", "database_socket": "db.sock"},
        }
        for field_name, path in names.items():
            object.__setattr__(self, field_name, self.root / path)
        object.__setattr__(self, "description", self.folder / CLUSTER_FILE)
        object.__setattr__(self, "lock", self.folder / "lock")

    def log(self, daemon: str) -> Path:
        """Return the log of munged, slurmctld, slurmdbd, mariadbd or slurmd-NODE, below `folder`, not the link."""
        return self.folder / "log" / f"{daemon}.log"

    def pid_file(self, daemon: str) -> Path:
        """Return the pid file of a daemon, as in `log`."""
        return self.folder / "pid" / f"{daemon}.pid"


def places_of(folder: Path) -> Places:
    """Return the places of `folder`, through a link in /tmp if its path is too long (sockets) or has blanks."""
    real = Path(os.path.realpath(folder))
    if len(str(real)) <= _LONGEST_FOLDER and _PLAIN_PATH.fullmatch(str(real)):
        return Places(real, real)
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:12]
    return Places(real, Path("/tmp") / f"opsctl-{os.getuid()}-{digest}")


def link_root(places: Places) -> None:
    """Create the short link, if needed. Raises OpsctlError if another file has its name."""
    if places.root == places.folder:
        return
    try:
        places.root.symlink_to(places.folder)
    except FileExistsError:
        ours = places.root.is_symlink() and places.root.lstat().st_uid == os.getuid()
        if ours and places.root.readlink() == places.folder:
            return
        raise OpsctlError(
            f"{places.root} is in the way of the cluster in {places.folder}. Remove it or choose a shorter --folder"
        ) from None


def unlink_root(places: Places) -> None:
    """Remove the short link, if it is this cluster's."""
    if places.root != places.folder and places.root.is_symlink() and places.root.lstat().st_uid == os.getuid():
        places.root.unlink(missing_ok=True)


class Description(msgspec.Struct, frozen=True):
    """A local cluster as its last `up` started it."""

    cluster: Cluster
    spec: Spec
    ports: Ports
    user: str  # owner of the daemons


class _Rest(msgspec.Struct):
    """The fields of the file other than those of Cluster."""

    user: str
    ports: Ports
    spec: Spec


def write_description(places: Places, description: Description) -> None:
    """Write the description, readable for all users."""
    rest = _Rest(description.user, description.ports, description.spec)
    value = {**msgspec.to_builtins(description.cluster), **msgspec.to_builtins(rest)}
    write_state(places.folder, places.description, value, mode=0o644)


def read_description(places: Places) -> Description | None:
    """Return the description by the last `up`; None without one. Raises OpsctlError for a damaged file."""
    remedy = "remove it, then opsctl local-cluster up"
    cluster = read_whole(places.folder, places.description, Cluster, remedy)
    rest = read_whole(places.folder, places.description, _Rest, remedy)
    return Description(cluster, rest.spec, rest.ports, rest.user) if cluster and rest else None
