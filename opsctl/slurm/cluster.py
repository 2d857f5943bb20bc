"""A Slurm installation: what must be set to reach it."""

from __future__ import annotations

import os

import msgspec

#: Variables that change what Slurm's commands print or do behind our back. SLURM_CONF is set from the cluster instead.
_MISLEADING_PREFIXES = ("SQUEUE_", "SINFO_", "SACCT_", "SBATCH_", "SCANCEL_", "SALLOC_", "SRUN_", "SLURM_")
#: The file that describes a cluster: in a run's state, and in a local cluster's folder.
CLUSTER_FILE = "cluster.json"
#: A `slurm_conf` that is none: what this machine is set up for, whatever SLURM_CONF says here.
NO_CONF = ""
#: The backends of a Slurm: its own commands, or pyslurm for reading.
BACKENDS = ("commands", "pyslurm")


class Cluster(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Slurm installation. All None: the one that this process is set up for.

    It names programs to run and libraries to load. So it comes from the user who runs them, never from a run's folder.
    """

    name: str | None = None
    slurm_conf: str | None = None  # absolute; NO_CONF; None: SLURM_CONF as it is here
    bin_folders: tuple[str, ...] = ()  # put before PATH
    library_folders: tuple[str, ...] = ()  # put before LD_LIBRARY_PATH
    backend: str = BACKENDS[0]
    out_of_bounds: str = ""  # why nothing of it may be run here, in a sentence: every question to it is refused so

    def environment(self, base: dict[str, str] | None = None) -> dict[str, str]:
        """Return `base` (default: this process's) for this cluster's commands: C locale, no user settings."""
        source = dict(os.environ if base is None else base)
        clean = {k: v for k, v in source.items() if not k.startswith(_MISLEADING_PREFIXES)}
        conf = source.get("SLURM_CONF") if self.slurm_conf is None else self.slurm_conf
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
