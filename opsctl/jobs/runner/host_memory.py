"""Remove the snapshots that a job's failed attempts left in the memory of its nodes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from opsctl.core.process import Overdue, find_program, run_program
from opsctl.jobs.runner.stacks import beside_the_training
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
    srun, *words = beside_the_training(len(nodes), only_on=nodes)
    path = find_program(srun, environment)
    if path is not None:
        own = (str(MEMORY), "-maxdepth", "1", "-type", "d", "-user", str(os.getuid()))
        removal = ("-name", f"{MEMORY_PREFIX}.{task.allocation.job_id}.*", "-exec", "rm", "-rf", "--", "{}", "+")
        with contextlib.suppress(OSError, Overdue):
            run_program([path, *words, "find", *own, *removal], environment, _WAIT_S)
