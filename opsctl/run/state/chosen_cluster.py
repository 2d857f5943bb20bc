"""The Slurm cluster of a run. A run records which one it was, so that no export is needed; never what to execute.

A reader of a run executes the programs that Slurm's configuration names. Other users can write the record, so it has
only names. The reader alone decides how to reach a cluster: --cluster, OPSCTL_CLUSTER, SLURM_CONF, the local clusters
of this account, or a configuration that only root and the reader can change.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import msgspec

from opsctl.core.errors import OpsctlError, SlurmError, UsageError
from opsctl.core.files.state_files import read_state, read_whole
from opsctl.core.files.trusted import who_else_can_write
from opsctl.run.config.locate import account_state_folder
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.profile import cluster_table
from opsctl.slurm.client import SlurmReader
from opsctl.slurm.cluster import CLUSTER_FILE, NO_CONF, Cluster


class ClusterRecord(msgspec.Struct, frozen=True):
    """`.opsctl/cluster.json`: the cluster of the last submission."""

    name: str | None = None  # its ClusterName
    controller: str | None = None  # its first SlurmctldHost
    slurm_conf: str | None = None  # absolute, if it was given; None: the default of that machine

    def describe(self) -> str:
        """Return the cluster in words, for people."""
        said = f"cluster {self.name or 'without a name'}"
        said += f" (controller {self.controller})" if self.controller else ""
        return said + (f", configured by {self.slurm_conf}" if self.slurm_conf else "")


def local_clusters_folder() -> Path:
    """Return the default folder of local clusters: `$XDG_STATE_HOME/opsctl/clusters`."""
    return account_state_folder() / "clusters"


def find_cluster(name_or_folder: str) -> Cluster:
    """Return the local cluster of that name or folder. Raises UsageError, also if other users could change it."""
    named = local_clusters_folder()
    folder = named.absolute() / name_or_folder if os.sep not in name_or_folder else Path(name_or_folder).absolute()
    found = read_whole(folder, folder / CLUSTER_FILE, Cluster, "opsctl local-cluster up writes it again", UsageError)
    if found is None:
        raise UsageError(f"no cluster {name_or_folder!r} ({folder}): opsctl local-cluster status lists them")
    why = None if folder.parent == named.absolute() else _why_not_ours(folder, found)
    if why is not None:
        raise UsageError(
            f"not using the cluster in {folder}: {why}, so other users could decide what it runs; "
            "set PATH and SLURM_CONF yourself if you trust it"
        )
    return found


def choose_cluster(flag: str | None, paths: RunPaths | None) -> Cluster:
    """Return `--cluster`, `$OPSCTL_CLUSTER`, the run's last or this shell's cluster, the first there is. One that may
    not be reached is out of bounds. Raises RunFileError.
    """
    return _asked_by_profile(_named(flag) or (_of_run(paths) if paths else None) or shells_cluster())


def cluster_to_submit_to(flag: str | None, paths: RunPaths) -> Cluster:
    """As `choose_cluster`, but what this shell exports as SLURM_CONF comes before where the run was."""
    chosen = _named(flag) or (shells_cluster() if _exported() else None) or _of_run(paths) or shells_cluster()
    return _asked_by_profile(chosen)


def shells_cluster() -> Cluster:
    """Return this shell's cluster: that of the exported SLURM_CONF, or this account's local cluster with that file."""
    conf = _exported()
    return Cluster() if conf is None else _own_local_cluster(conf) or Cluster(slurm_conf=conf)


def read_record(paths: RunPaths) -> ClusterRecord | None:
    """Return where the run was submitted last; None before that. Raises OpsctlError for a damaged record."""
    remedy = "if nothing of the run is queued anywhere, remove it; else name the cluster with --cluster"
    return read_whole(paths.output, paths.cluster, ClusterRecord, remedy)


def record_of(cluster: Cluster, slurm: SlurmReader) -> ClusterRecord:
    """Return the record of `cluster`, with the names that Slurm uses. Asks Slurm once."""
    try:
        said = slurm.configuration()
    except SlurmError:  # where people may not ask for it; what is asked next says it if Slurm is gone
        said = {}
    controller = said.get("SlurmctldHost[0]", "").partition("(")[0] or None
    return ClusterRecord(said.get("ClusterName") or cluster.name, controller, cluster.slurm_conf or None)


def is_same_cluster(one: ClusterRecord, other: ClusterRecord) -> bool:
    """Return whether both are the same Slurm: by the file that configures it, else by its name and controller."""
    if one.slurm_conf and other.slurm_conf and _is_same_file(one.slurm_conf, other.slurm_conf):
        return True
    if one.name and one.controller and other.controller:
        return (one.name, one.controller) == (other.name, other.controller)
    return one.slurm_conf == other.slurm_conf


def reached(record: ClusterRecord) -> Cluster:
    """Return how to reach the cluster of `record` from here; out of bounds if only the record knows."""
    conf = record.slurm_conf
    if not conf:
        # An earlier release did not say which cluster that was.
        return Cluster(record.name, NO_CONF if record.controller else None)
    exported = _exported()
    if exported is not None and _is_same_file(exported, conf):
        return shells_cluster()
    own = _own_local_cluster(conf)
    if own is not None:
        return own
    try:
        why = who_else_can_write(Path(conf)) if conf.startswith(os.sep) else "that is no absolute path"
    except ValueError:
        why = "that is no path"
    except OSError as error:
        why = f"that cannot be seen from here ({error.strerror})"
    if why is not None:
        return Cluster(record.name, NO_CONF, out_of_bounds=_out_of_bounds(record, why))
    # Only root and this account can change it, but a link on the path may belong to another user.
    real = Path(conf).resolve()
    beside = read_state(real.parent, real.parent / CLUSTER_FILE, Cluster)
    if beside is not None and _why_not_ours(real.parent, beside) is None:
        return beside
    return Cluster(record.name, str(real))


def _asked_by_profile(cluster: Cluster) -> Cluster:
    return msgspec.structs.replace(cluster, backend=cluster_table().backend)


def _named(flag: str | None) -> Cluster | None:
    chosen = flag or os.environ.get("OPSCTL_CLUSTER")
    return find_cluster(chosen) if chosen else None


def _of_run(paths: RunPaths) -> Cluster | None:
    try:
        record = read_record(paths)
    except OpsctlError as error:
        return Cluster(slurm_conf=NO_CONF, out_of_bounds=str(error))
    return None if record is None else reached(record)


def _exported() -> str | None:
    conf = os.environ.get("SLURM_CONF")
    return str(Path(conf).absolute()) if conf else None


def _own_local_cluster(conf: str) -> Cluster | None:
    folder = local_clusters_folder()
    for description in folder.glob(f"*/{CLUSTER_FILE}") if folder.is_dir() else ():
        found = read_state(description.parent, description, Cluster)
        if found is not None and found.slurm_conf and _is_same_file(found.slurm_conf, conf):
            return found
    return None


def _why_not_ours(folder: Path, cluster: Cluster) -> str | None:
    """Return who else than root and the reader could change what the cluster in `folder` runs; None if no user can."""
    used = (str(folder / CLUSTER_FILE), cluster.slurm_conf or "", *cluster.bin_folders, *cluster.library_folders)
    for one in filter(None, used):
        place = Path(one).absolute()
        while not os.path.lexists(place):  # a user who may create it decides too
            place = place.parent
        try:
            why = who_else_can_write(place)
        except OSError as error:
            why = f"{place} cannot be seen ({error.strerror})"
        if why is not None:
            return why
    return None


def _is_same_file(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return Path(one).samefile(other)
    except (OSError, ValueError):
        return False


def _out_of_bounds(record: ClusterRecord, why: str) -> str:
    return (
        f"the run was submitted to {record.describe()}, not contacted: {why}, and code that Slurm loads there would "
        f"run as you; if you trust it, export SLURM_CONF={shlex.quote(record.slurm_conf or '')}, "
        "or name a cluster with --cluster"
    )
