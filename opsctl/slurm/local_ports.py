"""Whether a local cluster's daemon is gone, by the port of this machine that its configuration names.

Slurm's own commands try a port that refuses again and again, for longer than somebody at a terminal waits.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from opsctl.slurm.cluster import CLUSTER_FILE

#: The daemon that a command asks first, and how slurm.conf says where it listens; what is not listed is left to Slurm.
_CONTROLLER = ("slurmctld", "SlurmctldHost", "SlurmctldPort")
_ASKED = {
    **dict.fromkeys(("squeue", "sinfo", "sbatch", "scancel", "scontrol", "srun"), _CONTROLLER),
    "sacct": ("slurmdbd", "AccountingStorageHost", "AccountingStoragePort"),
}
_HERE = "127.0.0.1"
_CONNECT_S = 1.0


def local_folder(slurm_conf: str | None) -> Path | None:
    """The folder of the local cluster that this file configures; None where it is of another Slurm."""
    folder = Path(slurm_conf).parent if slurm_conf else None
    # No Path.is_file: what cannot be looked at (another's folder, a file server that is away) is an OSError to it.
    return folder if folder is not None and os.path.isfile(folder / CLUSTER_FILE) else None  # noqa: PTH113


def refusing_daemon(program: str, slurm_conf: str | None) -> str | None:
    """Who does not listen, in words, where `program` would ask a local cluster's daemon here and its port refuses.

    None where it may answer, and where that is not to be told.
    """
    asked = _ASKED.get(Path(program).name)
    if asked is None or slurm_conf is None or local_folder(slurm_conf) is None:
        return None
    daemon, host_key, port_key = asked
    try:
        text = Path(slurm_conf).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    host, port = _value(text, host_key), _value(text, port_key)
    if _HERE not in host or not port.isdecimal() or not _refuses(int(port)):
        return None
    return f"its {daemon} does not listen: port {port} of this machine refuses"


def _value(text: str, key: str) -> str:
    found = re.search(rf"^{key}=(\S+)", text, re.MULTILINE)
    return found[1] if found else ""


def _refuses(port: int) -> bool:
    try:
        socket.create_connection((_HERE, port), _CONNECT_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, OverflowError):
        return False
    return False
