"""Remove the snapshots that a job's failed attempts left in the memory of its nodes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from opsctl.core.process import Overdue, find_program, run_program
from opsctl.jobs.runner.task import Task
from trainer.formats.checkpoint.manifest import MEMORY, MEMORY_PREFIX
from trainer.recipe.options import Options

_WAIT_S = 30.0


def free_snapshots(task: Task, lost: Sequence[str]) -> None:
    """Remove this job's snapshots on its nodes. On a node that does not answer, the next training removes them."""
    nodes = [node for node in task.allocation.nodes if node not in lost]
    if not (isinstance(task.options, Options) and task.options.snapshot_interval and nodes):
        return
    environment = {**os.environ, **task.cluster.additions(dict(os.environ))}
    srun = find_program("srun", environment)
    if srun is not None:
        with contextlib.suppress(OSError, Overdue):
            run_program([srun, *_removal(task.allocation.job_id, nodes)], environment, _WAIT_S)


def _removal(job_id: int, nodes: Sequence[str]) -> list[str]:
    """Return srun's words."""
    return [
        "--overlap",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        "--cpus-per-task=1",
        "--mpi=none",
        "--export=ALL",
        *("find", str(MEMORY), "-maxdepth", "1", "-type", "d", "-user", str(os.getuid())),
        *("-name", f"{MEMORY_PREFIX}.{job_id}.*", "-exec", "rm", "-rf", "--", "{}", "+"),
    ]
