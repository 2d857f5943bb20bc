"""What a job of ours needs of its surroundings, as `--export=NONE` brings nothing of the submitter's shell. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping

from opsctl.run.render.quoting import shell_word
from opsctl.slurm.cluster import Cluster

#: Names the cron folder before the profile does. Each job of a scheduler has it.
CRON_FOLDER_VARIABLE = "OPSCTL_CRON_FOLDER"
#: Variables of the folders with an account's own profile and state, and these folders in a home.
_OWN_FOLDERS = {"XDG_CONFIG_HOME": ".config", "XDG_STATE_HOME": ".local/state"}


def exports_of(environment: Mapping[str, str], home: str, *more: str) -> tuple[tuple[str, str], ...]:
    """Return the variables that a job gets, those named in `more` too, if they are set and fit on a line.

    home: the folder in which the account's jobs begin. If HOME is another one here, its profile and state are named.
    """
    here = environment.get("HOME")
    own = {name: f"{here}/{folder}" for name, folder in _OWN_FOLDERS.items()} if here and here != home else {}
    names = sorted((CRON_FOLDER_VARIABLE, *_OWN_FOLDERS, *more))
    found = {name: environment.get(name) or own.get(name, "") for name in names}
    return tuple((name, value) for name, value in found.items() if value and value.isprintable())


def cluster_lines(cluster: Cluster) -> list[str]:
    """Lines of bash that reach `cluster`: folders put before what the job already has."""
    lines = []
    if cluster.slurm_conf:
        # Where nodes have their configuration elsewhere, they know it best.
        lines.append(f"if [ -r {shell_word(cluster.slurm_conf)} ]; then")
        lines.append(f"    export SLURM_CONF={shell_word(cluster.slurm_conf)}")
        lines.append("fi")
    if cluster.bin_folders:
        lines.append("export PATH=" + shell_word(os.pathsep.join(cluster.bin_folders)) + ':"$PATH"')
    if cluster.library_folders:
        folders = shell_word(os.pathsep.join(cluster.library_folders))
        lines.append(f'export LD_LIBRARY_PATH={folders}"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"')
    return lines
