"""The files of one local cluster, all under its folder."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.slurm.cluster import CLUSTER_FILE

#: A Unix socket's path holds 107 bytes; the longest we and slurmd put under the folder is
#: spool/NODE/NODE_JOB.STEP with its numbers: two node names and about 35 more.
_LONGEST_FOLDER = 40
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/-]+")


@dataclass(frozen=True)
class Places:
    """`folder` is the real one; `root` is how the configuration names it: the same, or a short plain link to it."""

    folder: Path
    root: Path

    @property
    def description(self) -> Path:
        """What the last `up` made of the cluster. Under `folder`: read before there is a link."""
        return self.folder / CLUSTER_FILE

    @property
    def lock(self) -> Path:
        """Held by `up` and `down`, one at a time."""
        return self.folder / "lock"

    @property
    def slurm_conf(self) -> Path:
        """What SLURM_CONF names for daemons, commands and jobs; gres.conf and the others lie beside it."""
        return self.root / "slurm.conf"

    @property
    def munge(self) -> Path:
        """munged's key, seed and socket; mode 0711, so that every user reaches the socket."""
        return self.root / "munge"

    @property
    def munge_socket(self) -> Path:
        """Where Slurm's commands and daemons ask munged."""
        return self.munge / "munge.sock"

    @property
    def state(self) -> Path:
        """slurmctld's: the queue, which outlives a `down`. Mode 0700."""
        return self.root / "state"

    @property
    def spool(self) -> Path:
        """The slurmds', a folder for each node."""
        return self.root / "spool"

    @property
    def logs(self) -> Path:
        """A log for each daemon; `log` gives its path."""
        return self.root / "log"

    @property
    def pids(self) -> Path:
        """As Slurm's configuration names it; `pid_file` gives a daemon's."""
        return self.root / "pid"

    @property
    def gpus(self) -> Path:
        """Empty files 0, 1, ...: the devices that Slurm hands out as GPUs, the same for every node."""
        return self.root / "gpu"

    @property
    def database(self) -> Path:
        """mariadbd's data; only in a cluster with accounting."""
        return self.root / "db"

    @property
    def database_scratch(self) -> Path:
        """mariadbd's temporary tables, which are named by process id alone: not where other servers have theirs."""
        return self.root / "db.tmp"

    @property
    def database_socket(self) -> Path:
        """Where slurmdbd and we reach mariadbd, which listens on no port."""
        return self.root / "db.sock"

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
