"""A Slurm that only remembers, for tests of what is asked of it: no real one can be made to answer just so."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import structs

from opsctl.core.account import account_name
from opsctl.core.errors import SlurmError
from opsctl.jobs.scheduler.context import Cron
from opsctl.run.config.schema import CronTable
from opsctl.run.state.scheduler import CronPaths
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.types import Job, JobEnd


@dataclass
class SlurmInMemory:
    """What was submitted, in the order in which it was."""

    scripts: list[str] = field(default_factory=list)
    queue: list[Job] = field(default_factory=list)
    ended: dict[int, JobEnd] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)
    error: SlurmError | None = None  # of every question
    refuses: str = ""  # words in a script for which sbatch fails
    hides: bool = False
    most: int = 1000  # jobs that an account may have in the queue

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        if self.error:
            raise self.error
        ids = None if job_ids is None else set(job_ids)
        return [job for job in self.queue if ids is None or job.job_id in ids]

    def ends(self, job_ids: Iterable[int]) -> dict[int, JobEnd]:
        return {job_id: self.ended[job_id] for job_id in job_ids if job_id in self.ended}

    def submit(self, script: str) -> int:
        if self.error:
            raise self.error
        if self.refuses and self.refuses in script:
            raise SlurmError("Slurm refused to take the job: no")
        if len(self.queue) >= self.most:
            raise SlurmError("Slurm refused to take the job: Job violates accounting/QOS policy (job submit limit)")
        self.scripts.append(script)
        job_id = 100 + len(self.scripts)
        comment = re.search(r"^#SBATCH --comment='(.*)'$", script, re.MULTILINE)
        assert comment is not None, script
        self.queue.append(a_job(job_id, comment[1]))
        return job_id

    def cancel(self, ids: Iterable[int | str], pending_only: bool = False) -> None:
        self.cancelled += [int(one) for one in ids]
        self.queue = [job for job in self.queue if job.job_id not in self.cancelled]

    def hides_others_jobs(self) -> bool:
        return self.hides

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"no test asks for {name}")

    def end(self, job_id: int, state: str, exit_code: int = 0, signal: int = 0, **shown: Any) -> None:
        """Let a job end without a word of its own. shown: what Slurm tells of who it was."""
        self.queue = [job for job in self.queue if job.job_id != job_id]
        self.ended[job_id] = JobEnd(job_id, state, exit_code, signal, None, None, "", **shown)


def a_job(job_id: int, comment: str, **changes: Any) -> Job:
    job = Job(
        job_id=job_id,
        array_job_id=job_id,
        array_task="",
        name="x",
        user=account_name(),
        partition="p",
        state="PENDING",
        reason="BeginTime",
        nodes="",
        node_count=1,
        elapsed_s=0,
        time_limit_s=60,
        submitted_at=datetime.now(UTC),
        started_at=None,
        ends_at=None,
        dependency="",
        comment=comment,
        work_dir="/",
    )
    return structs.replace(job, **changes)


def a_cron(folder: Path, slurm: SlurmInMemory, **table: Any) -> Cron:
    """A cron folder for this account, with nothing shipped in it."""
    paths = CronPaths(folder)
    for one in (folder, paths.hourly, paths.daily, paths.logs, paths.state, paths.state / "texts"):
        one.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Cron(paths, CronTable(**table), Cluster(), slurm, {"XDG_STATE_HOME": str(folder)})


def add(cron: Cron, name: str, body: str = "true", head: str = "") -> None:
    """A job file as a person writes it."""
    (cron.paths.folder / f"cron.{name}.slurm").write_text(f"#!/bin/bash\n{head}\n{body}\n")
