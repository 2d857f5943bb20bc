"""What local clusters there are, and how each is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.errors import OpsctlError, SlurmUnreachable
from opsctl.localcluster.description import read_description
from opsctl.localcluster.installation import find_program
from opsctl.localcluster.places import places_of
from opsctl.localcluster.processes import processes_of
from opsctl.localcluster.startup import expected_daemons, missing_daemons, node_states
from opsctl.records.cluster import local_clusters_folder
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.process import run_slurm

DEADLINE_S = 8.0


@dataclass(frozen=True)
class ClusterStatus:
    """One local cluster. `state`: up (all daemons run), partial (some do), down, or damaged (see `problem`)."""

    name: str
    folder: str
    state: str
    shape: str = ""
    accounting: bool = False
    daemons_alive: int = 0
    daemons_expected: int = 0
    daemons_missing: tuple[str, ...] = ()
    nodes_by_state: dict[str, int] = field(default_factory=dict)
    jobs_by_state: dict[str, int] = field(default_factory=dict)
    processes: int = 0
    slurm_conf: str = ""
    problem: str = ""


def known_folders(more: tuple[Path, ...] = ()) -> list[Path]:
    """The folders of the named clusters, and those in `more`."""
    named = local_clusters_folder()
    found = sorted(path.parent for path in named.glob("*/cluster.json")) if named.is_dir() else []
    return [*found, *(folder for folder in more if folder not in found)]


def status_of(folder: Path, timeout_s: float = DEADLINE_S) -> ClusterStatus:
    """How the cluster in `folder` is, asking its Slurm for `timeout_s` seconds at most. OpsctlError: none there."""
    places = places_of(folder)
    processes = len(processes_of(places))
    try:
        description = read_description(places)
    except OpsctlError as error:
        return ClusterStatus(folder.name, str(places.folder), "damaged", processes=processes, problem=str(error))
    if description is None:
        raise OpsctlError(f"no cluster in {folder}: opsctl local-cluster up --folder makes one")
    expected = expected_daemons(description.spec)
    missing = tuple(missing_daemons(description.spec, places))
    state = "up" if not missing else "partial" if processes else "down"
    nodes: dict[str, int] = {}
    jobs: dict[str, int] = {}
    problem = ""
    if state != "down":
        try:
            nodes, jobs = _ask(description.cluster, timeout_s)
        except SlurmUnreachable as error:
            problem = str(error)
    return ClusterStatus(
        name=description.cluster.name or folder.name,
        folder=str(places.folder),
        state=state,
        shape=description.spec.summary,
        accounting=description.spec.accounting,
        daemons_alive=len(expected) - len(missing),
        daemons_expected=len(expected),
        daemons_missing=missing,
        nodes_by_state=nodes,
        jobs_by_state=jobs,
        processes=processes,
        slurm_conf=str(description.cluster.slurm_conf),
        problem=problem,
    )


def _ask(cluster: Cluster, timeout_s: float) -> tuple[dict[str, int], dict[str, int]]:
    """Nodes by state and jobs by state."""
    squeue = find_program("squeue", cluster.bin_folders) or "squeue"
    answer = run_slurm([squeue, "-h", "-r", "-o", "%T"], cluster.environment(), timeout_s / 2)
    sinfo = find_program("sinfo", cluster.bin_folders) or "sinfo"
    states = node_states(sinfo, cluster, timeout_s / 2)
    return dict(Counter(states.values())), dict(Counter(answer.stdout.split()))
