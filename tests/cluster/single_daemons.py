"""Single daemons and nodes of a local cluster, for tests of what happens when one is gone."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from opsctl.local.cluster.daemons import end, pid_of, processes_of
from opsctl.local.cluster.files import places_of, read_description
from opsctl.local.cluster.installation import find_installation
from opsctl.local.cluster.startup import Starter


def start_daemon(folder: Path, daemon: str) -> None:
    """Start `slurmctld`, which recovers its jobs, or `slurmd-NODE` of the cluster in `folder`, unless it runs."""
    places = places_of(folder)
    description = read_description(places)
    assert description is not None, f"no cluster in {folder}"
    if pid_of(places, daemon) is not None:
        return
    spec = description.spec
    starter = Starter(places, description, find_installation(spec.slurm_prefix, spec.accounting))
    if daemon == "slurmctld":
        starter.start_slurmctld(fresh=False)
    else:
        node = daemon.removeprefix("slurmd-")
        assert node in spec.node_names, f"no daemon {daemon!r} in {folder}"
        starter.start_slurmd(node)


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
