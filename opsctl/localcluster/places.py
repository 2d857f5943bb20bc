"""The files of one local cluster, all under its folder."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import OpsctlError

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
        return self.folder / "cluster.json"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def slurm_conf(self) -> Path:
        return self.root / "slurm.conf"

    @property
    def munge(self) -> Path:
        return self.root / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge / "munge.sock"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def pids(self) -> Path:
        return self.root / "pid"

    @property
    def gpus(self) -> Path:
        return self.root / "gpu"

    @property
    def database(self) -> Path:
        return self.root / "db"

    @property
    def database_socket(self) -> Path:
        return self.root / "db.sock"

    def log(self, daemon: str) -> Path:
        """`daemon`: munged, slurmctld, slurmdbd, mariadbd, or slurmd-NODE. Under `folder`: the link may be gone."""
        return self.folder / "log" / f"{daemon}.log"

    def pid_file(self, daemon: str) -> Path:
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
