"""Which Slurm to talk to. A run remembers it, so that nobody has to export anything."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opsctl.errors import OpsctlError, UsageError
from opsctl.runs.paths import RunPaths

#: Variables that change what Slurm's commands print or do behind our back. SLURM_CONF is set from the cluster instead.
_MISLEADING_PREFIXES = ("SQUEUE_", "SINFO_", "SACCT_", "SBATCH_", "SCANCEL_", "SALLOC_", "SRUN_", "SLURM_")


@dataclass(frozen=True)
class Cluster:
    """A Slurm installation. All None: the one this machine is set up for."""

    name: str | None = None
    slurm_conf: str | None = None
    bin_folders: tuple[str, ...] = ()  # put before PATH
    library_folders: tuple[str, ...] = ()  # put before LD_LIBRARY_PATH

    def environment(self, base: dict[str, str] | None = None) -> dict[str, str]:
        """`base` (default: this process's) for calling this cluster's commands: plain C locale, nobody's settings."""
        source = dict(os.environ if base is None else base)
        clean = {k: v for k, v in source.items() if not k.startswith(_MISLEADING_PREFIXES)}
        conf = self.slurm_conf or source.get("SLURM_CONF")
        if conf:
            clean["SLURM_CONF"] = conf
        clean.update(self.additions(clean))
        clean["LC_ALL"] = "C"
        return clean

    def additions(self, base: dict[str, str]) -> dict[str, str]:
        """Only what must be set on top of `base` to reach this cluster; empty for the machine's own."""
        changes: dict[str, str] = {}
        if self.slurm_conf:
            changes["SLURM_CONF"] = self.slurm_conf
        for variable, folders in (("PATH", self.bin_folders), ("LD_LIBRARY_PATH", self.library_folders)):
            if folders:
                changes[variable] = os.pathsep.join([*folders, *filter(None, [base.get(variable)])])
        return changes

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Cluster:
        return cls(
            name=value.get("name"),
            slurm_conf=value.get("slurm_conf"),
            bin_folders=tuple(value.get("bin_folders") or ()),
            library_folders=tuple(value.get("library_folders") or ()),
        )


def local_clusters_folder() -> Path:
    """Where local clusters live unless told otherwise: `$XDG_STATE_HOME/opsctl/clusters`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "opsctl" / "clusters"


def find_cluster(name_or_folder: str) -> Cluster:
    """The local cluster of that name, or in that folder. Raises UsageError."""
    folder = Path(name_or_folder)
    if os.sep not in name_or_folder:
        folder = local_clusters_folder() / name_or_folder
    try:
        return Cluster.from_json(json.loads((folder / "cluster.json").read_text()))
    except FileNotFoundError:
        raise UsageError(f"no cluster {name_or_folder!r} ({folder}): opsctl local-cluster status lists them") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {folder / 'cluster.json'}: {error}") from None


def choose_cluster(flag: str | None, paths: RunPaths | None) -> Cluster:
    """`--cluster`, `$OPSCTL_CLUSTER`, the one the run was submitted to, this machine's own: the first that is there."""
    chosen = flag or os.environ.get("OPSCTL_CLUSTER")
    if chosen:
        return find_cluster(chosen)
    if paths is not None:
        try:
            return Cluster.from_json(json.loads(paths.cluster.read_text()))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise OpsctlError(f"cannot read {paths.cluster}: {error}; remove it and submit with --cluster") from None
    return Cluster()
