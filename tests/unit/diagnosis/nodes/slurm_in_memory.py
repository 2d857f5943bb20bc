"""Four nodes and a queue with the behaviour of scontrol; no Slurm runs in these tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from opsctl.core.account import account_name
from opsctl.slurm.job_match import JobComment
from opsctl.slurm.nodes import Node
from opsctl.slurm.types import Job


@dataclass
class SlurmInMemory:
    """The part of Slurm that these tests use."""

    names: tuple[str, ...] = ("n1", "n2", "n3", "n4")
    queue: list[Job] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)  # (job, nodes) to exclude
    looks: int = 0

    def nodes(self, folded: str | None = None) -> list[Node]:
        self.looks += 1
        return [Node(name, "idle", "", ("main*",)) for name in self.names]

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        self.looks += 1
        return self.queue

    def exclude(self, ids: Iterable[str], folded: str) -> None:
        self.asked += [(one, folded) for one in ids]


def in_memory(**given: Any) -> Any:
    """Return a Slurm in memory, as any client type."""
    return SlurmInMemory(**given)


def job(array: int, task: str, run_id: str, state: str = "PENDING", nodes: str = "", user: str = "") -> Job:
    """Return a row of the queue, of the run."""
    return Job(
        job_id=array,
        array_job_id=array,
        array_task=task,
        name="demo",
        user=user or account_name(),
        partition="main",
        state=state,
        reason="None",
        nodes=nodes,
        node_count=2,
        elapsed_s=0,
        time_limit_s=600,
        submitted_at=datetime.now().astimezone(),
        started_at=None,
        ends_at=None,
        dependency="",
        comment=str(JobComment(run_id, "token")),
        work_dir="/",
    )
