"""The folder of a local cluster before its daemons start: folders, keys, make-believe GPUs, configuration."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from pathlib import Path

from opsctl.local.cluster import configuration
from opsctl.local.cluster.files import Places, link_root
from opsctl.local.cluster.installation import Installation
from opsctl.local.cluster.ports import Ports
from opsctl.local.cluster.spec import Spec


def lay_out(spec: Spec, places: Places, ports: Ports, installation: Installation, user: str) -> None:
    """Make everything the daemons need. Other users must get through to the socket, only the owner to the secrets."""
    link_root(places)
    with contextlib.suppress(PermissionError):
        places.folder.chmod(0o755)
    modes = {places.munge: 0o711, places.state: 0o700}
    for folder in (places.munge, places.state, places.spool, places.logs, places.pids, places.gpus):
        folder.mkdir(exist_ok=True)
        folder.chmod(modes.get(folder, 0o755))
    for name in spec.node_names:
        (places.spool / name).mkdir(exist_ok=True)
    for number in range(spec.gpus_per_node):
        (places.gpus / str(number)).touch()
    _write_configuration(spec, places, ports, installation, user)
    for key in (places.munge / "munge.key", places.root / "slurm.key"):
        if not key.exists():
            _write(key, os.urandom(1024), 0o600)


def forget_jobs(places: Places) -> None:
    """Remove what an earlier cluster of another shape left: slurmctld refuses another cluster's state."""
    for name in ("state", "spool", "db", "log", "pid"):
        shutil.rmtree(places.folder / name, ignore_errors=True)


def _write_configuration(spec: Spec, places: Places, ports: Ports, installation: Installation, user: str) -> None:
    host = socket.gethostname().split(".")[0]
    version = installation.version
    texts = {
        "slurm.conf": configuration.slurm_conf(spec, places, ports, host, user, installation),
        "gres.conf": configuration.gres_conf(spec, places),
        "cgroup.conf": configuration.cgroup_conf(version),
        "slurmdbd.conf": configuration.slurmdbd_conf(places, ports, host, user, installation)
        if spec.accounting
        else None,
    }
    for name, text in texts.items():
        if text is None:
            (places.root / name).unlink(missing_ok=True)
        else:
            # slurmdbd refuses a file that others can read.
            _write(places.root / name, text.encode(), 0o600 if name == "slurmdbd.conf" else 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
