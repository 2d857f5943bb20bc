"""The allocation this process runs in, as Slurm's environment describes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from opsctl.core.errors import UsageError
from opsctl.slurm.nodes import expand_nodes


@dataclass(frozen=True)
class Allocation:
    """One job: an array task, or a job by itself."""

    job_id: int
    array_job_id: int  # equal to job_id without an array
    array_task: str  # "" without an array
    restart_count: int  # times Slurm has requeued it
    nodes: tuple[str, ...]  # in Slurm's order: the place of a node is its launcher's rank
    user: str
    cpus_per_task: int | None = None  # None when the job asked for no number
    cluster: str = ""  # Slurm's name of it

    @property
    def display_id(self) -> str:
        """The id as squeue shows it."""
        return f"{self.array_job_id}_{self.array_task}" if self.array_task else str(self.job_id)

    @property
    def requeued_id(self) -> int | None:
        """The job's id where it runs again after a requeue, so that what is open under it is from before; else None."""
        return self.job_id if self.restart_count else None


def read_allocation(environment: Mapping[str, str]) -> Allocation:
    """The allocation of the job that `environment` belongs to. Raises UsageError outside of one."""
    try:
        job_id = int(environment["SLURM_JOB_ID"])
        folded = environment["SLURM_JOB_NODELIST"]
    except (KeyError, ValueError):
        raise UsageError(
            "opsctl job run works inside a Slurm job only (no SLURM_JOB_ID here): opsctl submit starts it"
        ) from None
    return Allocation(
        job_id=job_id,
        array_job_id=_number(environment, "SLURM_ARRAY_JOB_ID", job_id),
        array_task=environment.get("SLURM_ARRAY_TASK_ID", ""),
        restart_count=_number(environment, "SLURM_RESTART_COUNT", 0),
        nodes=tuple(expand_nodes(folded)),
        cpus_per_task=_number(environment, "SLURM_CPUS_PER_TASK", 0) or None,
        cluster=environment.get("SLURM_CLUSTER_NAME", ""),
        user=environment.get("SLURM_JOB_USER") or environment.get("USER") or str(os.getuid()),
    )


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdigit() else otherwise
