"""Start and end a local cluster."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import locked
from opsctl.local.cluster.configuration import forget_jobs, lay_out
from opsctl.local.cluster.daemons import Process, end, pid_of, processes_of
from opsctl.local.cluster.files import (
    Description,
    Places,
    link_root,
    places_of,
    read_description,
    unlink_root,
    write_description,
)
from opsctl.local.cluster.installation import find_installation
from opsctl.local.cluster.ports import Ports, reserve
from opsctl.local.cluster.spec import MAX_NODES, Spec
from opsctl.local.cluster.startup import Progress, Starter, missing_daemons
from opsctl.slurm.cluster import Cluster

_LOCK_WAIT_S = 60
#: They end after the daemons that write to them: slurmctld to slurmdbd, slurmdbd to the database, all through munge.
_ENDED_LAST = ("slurmdbd", "mariadbd", "munged")


@dataclass(frozen=True)
class LocalCluster:
    """A running cluster."""

    folder: Path  # real and absolute
    cluster: Cluster
    spec: Spec
    ports: Ports
    was_up: bool = False  # all daemons were running


def up(spec: Spec, folder: Path, progress: Progress = lambda _line: None) -> LocalCluster:
    """Start the missing daemons of the cluster in `folder`, and wait until every node can take jobs.

    Recovers the jobs of an earlier start with the same folder and spec. After an error, ends the daemons that it
    started. Raises OpsctlError (SlurmMissing without Slurm).
    """
    if not 1 <= len(spec.node_names) <= MAX_NODES:
        raise OpsctlError(f"{len(spec.node_names)} nodes requested, but a local cluster has 1 to {MAX_NODES}")
    installation = find_installation(spec.slurm_prefix, spec.accounting)
    user = _user_name()
    folder.mkdir(parents=True, exist_ok=True)
    places = places_of(folder)
    with locked(places.folder, places.lock, _LOCK_WAIT_S, f"start the cluster in {places.folder}"):
        before = read_description(places)
        running = processes_of(places)
        if running and before is not None and before.spec != spec:
            raise OpsctlError(
                f"the cluster in {places.folder} is up as {before.spec.summary}, not {spec.summary}. "
                "Run opsctl local-cluster down first, or choose another --name"
            )
        if running and before is not None and not missing_daemons(spec, places):
            link_root(places)
            return LocalCluster(places.folder, before.cluster, spec, before.ports, was_up=True)
        # Running daemons keep their ports; else the earlier ports if free, so that no address changes.
        keep = before.ports if before is not None and running else None
        with _ports(keep, before, spec) as ports:
            cluster = Cluster(spec.name, str(places.slurm_conf), installation.bin_folders, installation.library_folders)
            description = Description(cluster, spec, ports, user)
            fresh = before is None or before.spec != spec or not (places.folder / "state" / "job_state").exists()
            try:
                if fresh and not running:
                    forget_jobs(places)
                lay_out(spec, places, ports, installation, user)
                write_description(places, description)
                Starter(places, description, installation).start_missing(fresh, progress)
            except BaseException:
                _end_all(places, lambda _line: None, keep={process.pid for process in running})
                if not running:
                    unlink_root(places)
                raise
    return LocalCluster(places.folder, cluster, spec, ports)


def _ports(keep: Ports | None, before: Description | None, spec: Spec) -> contextlib.AbstractContextManager[Ports]:
    if keep is not None:
        return contextlib.nullcontext(keep)
    return reserve(len(spec.slurmd_names), before.ports if before else None)


def down(folder: Path, progress: Progress = lambda _line: None) -> int:
    """End all processes of the cluster in `folder`, and return their number. Raises OpsctlError if one stays."""
    places = places_of(folder)
    if not places.folder.is_dir():
        return 0
    with locked(places.folder, places.lock, _LOCK_WAIT_S, f"end the cluster in {places.folder}"):
        ended = _end_all(places, progress)
        unlink_root(places)
    return ended


def _end_all(places: Places, progress: Progress, keep: set[int] | None = None, timeout_s: float = 40) -> int:
    """End all processes but `keep` repeatedly: a process may have started another just before its end."""
    ended: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while left := [process for process in processes_of(places) if process.pid not in (keep or ())]:
        if time.monotonic() > deadline:
            shown = ", ".join(f"{process.pid} ({process.command})" for process in left[:3])
            raise OpsctlError(f"{len(left)} processes of the cluster in {places.folder} do not end: {shown}")
        progress(f"ending {len(left)} processes")
        ended |= {process.pid for process in left}
        _end_once(places, left)
    return len(ended)


def _end_once(places: Places, left: list[Process]) -> None:
    ours = {process.pid for process in left}
    late = {name: pid for name in _ENDED_LAST if (pid := pid_of(places, name)) in ours}
    # Controller and slurmds first, because they would requeue jobs. Then the jobs, then the other daemons.
    end([process.pid for process in left if process.kind == "daemon" and process.pid not in late.values()], grace_s=5)
    end([process.pid for process in left if process.kind == "task"], grace_s=2)
    end([process.pid for process in left if process.kind == "step"], grace_s=2, first=signal.SIGKILL)
    for pid in late.values():
        end([pid] if pid else [], grace_s=10)


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise OpsctlError(
            f"user {os.getuid()} has no name on this machine, but Slurm needs one. Add it to /etc/passwd"
        ) from None
