"""The local clusters and their states."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from opsctl.core.errors import OpsctlError, SlurmUnreachable, UsageError
from opsctl.local.cluster.daemons import processes_of
from opsctl.local.cluster.files import places_of, read_description
from opsctl.local.cluster.installation import find_program
from opsctl.local.cluster.startup import expected_daemons, missing_daemons, node_states
from opsctl.run.state.chosen_cluster import find_cluster, local_clusters_folder
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.process import run_slurm

DEADLINE_S = 8.0


State = Literal["up", "partial", "down", "damaged"]


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """One local cluster."""

    name: Annotated[str, Meta(description="Its name.")]
    folder: Annotated[str, Meta(description="Absolute path of its folder.")]
    state: Annotated[
        State,
        Meta(description="State. up: all daemons run; partial: some run; damaged: its description is unreadable."),
    ]
    shape: Annotated[str, Meta(description="Its nodes and GPUs in words; empty when damaged.")] = ""
    accounting: Annotated[bool, Meta(description="True if it has slurmdbd.")] = False
    daemons_alive: Annotated[int, Meta(description="Daemons that run.")] = 0
    daemons_expected: Annotated[int, Meta(description="Daemons of the whole cluster.")] = 0
    daemons_missing: Annotated[tuple[str, ...], Meta(description="Names of daemons that do not run.")] = ()
    nodes_by_state: Annotated[dict[str, int], Meta(description="Number of nodes in each of Slurm's states.")] = field(
        default_factory=dict
    )
    jobs_by_state: Annotated[dict[str, int], Meta(description="Number of jobs in each of Slurm's states.")] = field(
        default_factory=dict
    )
    processes: Annotated[int, Meta(description="Processes of the cluster, including jobs.")] = 0
    slurm_conf: Annotated[str, Meta(description="Absolute path of its slurm.conf; empty when damaged.")] = ""
    problem: Annotated[str, Meta(description="Its problem, or why its Slurm does not answer; else empty.")] = ""


def known_folders(more: tuple[Path, ...] = ()) -> list[Path]:
    """Return the folders of the named clusters, and those in `more`."""
    named = local_clusters_folder()
    found = sorted(path.parent for path in named.glob("*/cluster.json")) if named.is_dir() else []
    return [*found, *(folder for folder in more if folder not in found)]


def status_of(folder: Path, timeout_s: float = DEADLINE_S) -> ClusterStatus:
    """Return the state of the cluster in `folder`; Slurm gets `timeout_s`. Raises OpsctlError without one."""
    places = places_of(folder)
    processes = len(processes_of(places))
    try:
        description = read_description(places)
    except OpsctlError as error:
        return ClusterStatus(
            name=folder.name, folder=str(places.folder), state="damaged", processes=processes, problem=str(error)
        )
    if description is None:
        raise OpsctlError(f"no cluster in {folder}. To create one: opsctl local-cluster up --folder")
    expected = expected_daemons(description.spec)
    missing = tuple(missing_daemons(description.spec, places))
    state: State = "up" if not missing else "partial" if processes else "down"
    nodes: dict[str, int] = {}
    jobs: dict[str, int] = {}
    problem = ""
    if state != "down":
        try:
            nodes, jobs = _ask(find_cluster(str(folder.absolute())), timeout_s)
        except (SlurmUnreachable, UsageError) as error:
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
    """Return nodes by state and jobs by state."""
    squeue = find_program("squeue", cluster.bin_folders) or "squeue"
    answer = run_slurm([squeue, "-h", "-r", "-o", "%T"], cluster.environment(), timeout_s / 2)
    sinfo = find_program("sinfo", cluster.bin_folders) or "sinfo"
    states = node_states(sinfo, cluster, timeout_s / 2)
    return dict(Counter(states.values())), dict(Counter(answer.stdout.split()))
