"""Which Slurm is meant. A run remembers it, so that nobody has to export anything."""

from __future__ import annotations

import os
from pathlib import Path

from opsctl.errors import UsageError
from opsctl.records.locate import account_state_folder
from opsctl.records.state_files import read_whole
from opsctl.runs.paths import RunPaths
from opsctl.slurm.cluster import CLUSTER_FILE, Cluster


def local_clusters_folder() -> Path:
    """Where local clusters live unless told otherwise: `$XDG_STATE_HOME/opsctl/clusters`."""
    return account_state_folder() / "clusters"


def find_cluster(name_or_folder: str) -> Cluster:
    """The local cluster of that name, or in that folder. Raises UsageError."""
    folder = Path(name_or_folder)
    if os.sep not in name_or_folder:
        folder = local_clusters_folder() / name_or_folder
    found = read_whole(folder, folder / CLUSTER_FILE, Cluster, "opsctl local-cluster up writes it anew", UsageError)
    if found is None:
        raise UsageError(f"no cluster {name_or_folder!r} ({folder}): opsctl local-cluster status lists them")
    return found


def choose_cluster(flag: str | None, paths: RunPaths | None) -> Cluster:
    """`--cluster`, `$OPSCTL_CLUSTER`, the one the run was submitted to, this machine's own: the first that is there."""
    chosen = flag or os.environ.get("OPSCTL_CLUSTER")
    if chosen:
        return find_cluster(chosen)
    if paths is None:
        return Cluster()
    return read_whole(paths.output, paths.cluster, Cluster, "remove it and submit with --cluster") or Cluster()
