"""`opsctl` without a command: what to do next here."""

from __future__ import annotations

import os
from pathlib import Path

from opsctl.cli.selection import local_cluster_option, terminal
from opsctl.core.errors import OpsctlError, SlurmError, SlurmUnasked, UsageError
from opsctl.core.output import write_screen
from opsctl.monitoring.overview import status_of_run
from opsctl.run.config.locate import known_runs, locate_run_file
from opsctl.run.state.chosen_cluster import choose_cluster, local_clusters_folder
from opsctl.run.state.run_view import view
from opsctl.slurm.cache import cached_client
from opsctl.slurm.client import SlurmReader
from opsctl.ui.status.next_steps import no_run_here, run_here, run_that_cannot_be_read


def show_what_is_next() -> int:
    """Say it in one screen; the exit code."""
    width, colour = terminal()
    try:
        locate_run_file(None)
    except UsageError as error:
        if os.environ.get("OPSCTL_RUN"):
            lines = run_that_cannot_be_read(f"$OPSCTL_RUN: {error}", width, colour)
        else:
            lines = no_run_here(str(Path.cwd()), known_runs(), width, colour)
    else:
        try:
            run = view(None, asks_first=True)
            slurm = cached_client(choose_cluster(None, run.paths))
            one = status_of_run(run, slurm)
            evaluation = run.file.evaluation if run.file is not None else None
            evaluates = evaluation is not None and bool(evaluation.tasks)
            option = _option_for(one.overview.state, slurm)
            lines = run_here(one.overview, one.found, width, colour, option, evaluates)
        except (OpsctlError, OSError) as error:
            lines = run_that_cannot_be_read(str(error), width, colour)
    write_screen("\n".join(lines) + "\n")
    return 0


def _option_for(state: str, slurm: SlurmReader) -> str:
    """Return what a first submit has to add because this shell has no Slurm; empty where it has one."""
    if state != "unsubmitted" or not local_clusters_folder().is_dir():
        return ""
    try:
        slurm.jobs()
    except SlurmUnasked:
        return local_cluster_option()
    except SlurmError:
        return ""
    return ""
