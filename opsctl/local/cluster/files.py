"""The files of one local cluster, all under its folder, and its description in cluster.json."""

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

#: A Unix socket's path holds 107 bytes; the longest we and slurmd put under the folder is
#: spool/NODE/NODE_JOB.STEP with its numbers: two node names and about 35 more.
_LONGEST_FOLDER = 40
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/-]+")


@dataclass(frozen=True)
class Places:
    """The paths of one cluster, most of them below `root`."""

    folder: Path  # the real one
    root: Path  # as the configuration names it: the same, or a short plain link to it
    # Below `folder`, because they are used before there is a link.
    description: Path = field(init=False)  # what the last `up` made of the cluster
    lock: Path = field(init=False)  # held by `up` and `down`
    slurm_conf: Path = field(init=False)  # gres.conf and the others are stored next to it
    munge: Path = field(init=False)  # munged's key, seed and socket; mode 0711, so that every user reaches the socket
    munge_socket: Path = field(init=False)
    state: Path = field(init=False)  # slurmctld's: the queue, which outlives a `down`; mode 0700
    spool: Path = field(init=False)  # the slurmds', a folder for each node
    logs: Path = field(init=False)  # `log` returns a daemon's
    pids: Path = field(init=False)  # `pid_file` returns a daemon's
    gpus: Path = field(init=False)  # empty files 0, 1, ...: the devices that Slurm hands out as GPUs on every node
    database: Path = field(init=False)  # mariadbd's data; only with accounting
    database_scratch: Path = field(init=False)  # temporary tables are named by process id: not where others have theirs
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
        """`daemon`: munged, slurmctld, slurmdbd, mariadbd, or slurmd-NODE. Under `folder`: the link may be gone."""
        return self.folder / "log" / f"{daemon}.log"

    def pid_file(self, daemon: str) -> Path:
        """`daemon` as for `log`. Under `folder`: the link may be gone."""
        return self.folder / "pid" / f"{daemon}.pid"


def places_of(folder: Path) -> Places:
    """The places under `folder`, which a link in /tmp stands for when its path is long (sockets) or has blanks."""
    real = Path(os.path.realpath(folder))
    if len(str(real)) <= _LONGEST_FOLDER and _PLAIN_PATH.fullmatch(str(real)):
        return Places(real, real)
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:12]
    return Places(real, Path("/tmp") / f"opsctl-{os.getuid()}-{digest}")


def link_root(places: Places) -> None:
    """Make the short link, if there is to be one. Raises OpsctlError when somebody else sits on its name."""
    if places.root == places.folder:
        return
    try:
        places.root.symlink_to(places.folder)
    except FileExistsError:
        ours = places.root.is_symlink() and places.root.lstat().st_uid == os.getuid()
        if ours and places.root.readlink() == places.folder:
            return
        raise OpsctlError(
            f"{places.root} is in the way of the cluster in {places.folder}: remove it or choose a shorter --folder"
        ) from None


def unlink_root(places: Places) -> None:
    """Remove the short link, if it is ours."""
    if places.root != places.folder and places.root.is_symlink() and places.root.lstat().st_uid == os.getuid():
        places.root.unlink(missing_ok=True)


class Description(msgspec.Struct, frozen=True):
    """A local cluster as its last `up` made it."""

    cluster: Cluster
    spec: Spec
    ports: Ports
    user: str  # who runs the daemons


class _Rest(msgspec.Struct):
    """What the file has beside the fields of Cluster."""

    user: str
    ports: Ports
    spec: Spec


def write_description(places: Places, description: Description) -> None:
    """Write it so that anyone may read it."""
    rest = _Rest(description.user, description.ports, description.spec)
    value = {**msgspec.to_builtins(description.cluster), **msgspec.to_builtins(rest)}
    write_state(places.folder, places.description, value, mode=0o644)


def read_description(places: Places) -> Description | None:
    """What the last `up` in this folder wrote; None when there was none. Raises OpsctlError for a damaged file."""
    remedy = "remove it, then opsctl local-cluster up"
    cluster = read_whole(places.folder, places.description, Cluster, remedy)
    rest = read_whole(places.folder, places.description, _Rest, remedy)
    return Description(cluster, rest.spec, rest.ports, rest.user) if cluster and rest else None
