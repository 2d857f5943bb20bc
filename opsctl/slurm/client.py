"""The protocol of a Slurm client, whichever backend answers, and the time that a command has for it."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable
from datetime import datetime
from typing import Protocol

from opsctl.slurm.nodes import Node
from opsctl.slurm.types import Job, JobEnd

#: Seconds that all Slurm calls of one interactive command may take together.
INTERACTIVE_DEADLINE_S = 8.0


class Deadline:
    """A moment that several calls share: what the first one uses up the next ones no longer have."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends_at = time.monotonic() + seconds

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._ends_at - time.monotonic())


class SlurmReader(Protocol):
    """One Slurm, as those need it who only look.

    Every method raises SlurmUnreachable when no answer came in time, SlurmMissing without Slurm's commands, and
    SlurmError with Slurm's own words when it refused. "Unreachable" says nothing about any job.
    """

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        """Return the queue: a row per started array task, one for the rest. An array's id means all its tasks."""

    def hides_others_jobs(self) -> bool:
        """Return whether Slurm hides other users' jobs. Ask only if none were seen: operators see them."""

    def nodes(self, folded: str | None = None) -> list[Node]:
        """Return the state of each node in a folded list; of all nodes without one."""

    def configuration(self) -> dict[str, str]:
        """Return the controller's configuration, with Slurm's names: `ClusterName`, `SlurmctldHost[0]`, ..."""


class SlurmClient(SlurmReader, Protocol):
    """One Slurm, and all that may be asked of it. See SlurmReader for what its methods raise."""

    def ends(self, job_ids: Iterable[int]) -> dict[int, JobEnd]:
        """Return how these jobs ended, as far as Slurm knows: from accounting, else from the controller's memory."""

    def preempted(self, job_ids: Iterable[int]) -> dict[int, datetime]:
        """Return when Slurm preempted those of these jobs that it did, as far as the controller still knows.

        A job is preempted when its grace time begins. Until that ends its state is RUNNING, and one that leaves in it
        is COMPLETED or FAILED: only this shows why.
        """

    def submit(self, script: str) -> int:
        """Submit a script and return its job id. After SlurmUnreachable the job may exist: look it up."""

    def cancel(self, ids: Iterable[int | str], pending_only: bool = False) -> None:
        """Cancel these (`12`, `12_3`); `pending_only` spares running ones. One that has already left is no error."""

    def node_address(self, node: str) -> str:
        """Return the address at which Slurm reaches a node (its NodeAddr)."""

    def hold(self, ids: Iterable[str]) -> None:
        """Keep these from starting until they are released: `12_[2-3]`, tasks of an array that have not started."""

    def release(self, ids: Iterable[str]) -> None:
        """Let these start again when their turn comes."""

    def exclude(self, ids: Iterable[str], folded: str) -> None:
        """Keep these, which have not started, off the nodes of a folded list and off no others: `12_[2-3]`."""

    def start_after(self, ids: Iterable[str], job_id: int) -> None:
        """Let these, which have not started, wait for the end of a job, and of no other: `12_[2-3]`."""

    def allow_requeue(self, job_id: int, allowed: bool) -> None:
        """Set whether a running job may return to the queue, by a user or after a lost node."""

    def requeue(self, job_id: int) -> None:
        """End a running job and put it back into the queue under its id; it starts again some minutes later."""


def chosen_jobs(jobs: Iterable[Job], users: Container[str] | None, job_ids: Container[int] | None) -> list[Job]:
    """Return those of `jobs` that `SlurmReader.jobs` means: of these users, with these ids."""
    return [
        job
        for job in jobs
        if (users is None or job.user in users)
        and (job_ids is None or job.job_id in job_ids or job.array_job_id in job_ids)
    ]
