"""The optional backend over pyslurm: a program of its own asks libslurm for the queue, commands do the rest.

pyslurm's submit knows fewer options than sbatch's directives, its cancel and hold know no tasks of an array, and
accounting is sacct's: those stay Slurm's commands. Names and units are those of pyslurm 25.11: times are seconds since
the epoch, a time limit is minutes, None or "UNLIMITED". A folded array has no task number and lists in
`array_tasks_waiting` which tasks have not started.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from opsctl.core.errors import SlurmError, SlurmUnasked
from opsctl.core.process import Overdue, run_program
from opsctl.slurm.client import Deadline, chosen_jobs
from opsctl.slurm.commands import CommandClient
from opsctl.slurm.process import Answer, judged, refused, run_slurm, unreachable
from opsctl.slurm.states import Phase, phase_of
from opsctl.slurm.types import Job

#: Attributes of pyslurm.Job, in the order in which `job_of` reads them.
JOB_FIELDS = (
    *("id", "array_id", "array_task_id", "array_tasks_waiting", "array_tasks_parallel", "name", "user_name"),
    *("partition", "state", "state_reason", "allocated_nodes", "num_nodes", "run_time", "time_limit", "submit_time"),
    *("start_time", "end_time", "dependencies", "comment", "working_directory"),
)


class PyslurmClient(CommandClient):
    """See SlurmClient. Raises SlurmUnasked if pyslurm is missing or of another release than this Slurm."""

    _is_checked = False

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        """Return the jobs in the queue. Empty `users` or `job_ids` are no question."""
        names = None if users is None else set(users)
        ids = None if job_ids is None else set(job_ids)
        if names == set() or ids == set():
            return []
        self._refuse_what_is_out_of_bounds()
        return chosen_jobs(jobs_in_queue(self._patiently(self._asked)), names, ids)

    def _asked(self, time_s: float) -> list[list[Any]]:
        """Return the attributes `JOB_FIELDS` of all jobs."""
        deadline = Deadline(time_s)
        self._check_release(deadline)
        # A Python that is started elsewhere and without our settings has to find this package.
        environment = {**self.environment, "PYTHONPATH": _own_folder()}
        command = [sys.executable, "-P", "-m", "opsctl.slurm.pyslurm_program", *JOB_FIELDS]
        try:
            ended = run_program(command, environment, deadline.remaining_s())
        except Overdue:
            raise unreachable("pyslurm", f"no answer within {time_s:.0f} s") from None
        answer = judged(Answer(ended.code, "", ended.err.decode(errors="replace")), "pyslurm")
        if answer.code:
            raise SlurmError(f"Slurm refused to answer pyslurm: {answer.words()}")
        found: list[list[Any]] = json.loads(ended.out)
        return found

    def _check_release(self, deadline: Deadline) -> None:
        """Refuse what would end libslurm's process."""
        if self._is_checked:
            return
        conf = self.environment.get("SLURM_CONF")
        if conf and not os.path.exists(conf):  # noqa: PTH110 - one that cannot be looked at is not there either
            raise SlurmUnasked(f"no Slurm is set up by SLURM_CONF={conf}: there is no such file")
        try:
            own = metadata.version("pyslurm")
        except metadata.PackageNotFoundError:
            raise SlurmUnasked(
                "the backend pyslurm is not installed in this Python: pip install pyslurm of Slurm's own release, "
                "or leave [cluster] backend and OPSCTL_SLURM_BACKEND out"
            ) from None
        answer = run_slurm(["squeue", "--version"], self.environment, deadline.remaining_s())
        if answer.code != 0:
            raise refused(answer, "report its release")
        slurms = answer.stdout.split()[-1:] or ["?"]
        if own.split(".")[:2] != slurms[0].split(".")[:2]:
            raise SlurmUnasked(
                f"the backend pyslurm is {own}, made for Slurm {'.'.join(own.split('.')[:2])}, and this is Slurm "
                f'{slurms[0]}: pip install the pyslurm of that release, or choose [cluster] backend = "commands"'
            )
        self._is_checked = True


def _own_folder() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120


def jobs_in_queue(rows: Iterable[Sequence[Any]]) -> list[Job]:
    """Return those in the queue: pyslurm lists ended jobs too, for as long as the controller knows them."""
    return [job for job in map(job_of, rows) if phase_of(job.state) is not Phase.ENDED]


def job_of(row: Sequence[Any]) -> Job:
    """Return a job from its values in `JOB_FIELDS`."""
    job_id, array_id, task, waiting, parallel, name, user, partition, state, reason = row[:10]
    nodes, node_count, run_s, limit_min, submitted_s, started_s, ends_s, dependencies, comment, work_dir = row[10:]
    if task is not None:
        array_task = str(task)
    elif waiting:
        array_task = f"{waiting}%{parallel}" if parallel else waiting
    else:
        array_task = ""
    is_endless = not isinstance(limit_min, int) and phase_of(state) is not Phase.ENDED
    return Job(
        job_id=job_id,
        array_job_id=array_id or job_id,
        array_task=array_task,
        name=name or "",
        user=str(user),
        partition=partition or "",
        state=state,
        reason=reason or "None",
        nodes=nodes or "",
        node_count=node_count or 0,
        elapsed_s=run_s or 0,
        time_limit_s=60 * limit_min if isinstance(limit_min, int) else None,
        submitted_at=_time(submitted_s),
        started_at=_time(started_s),
        ends_at=None if is_endless else _time(ends_s),  # libslurm says a year
        dependency=_dependency(dependencies),
        comment=comment or "",
        work_dir=work_dir or "",
    )


def _dependency(known: Mapping[str, Any] | None) -> str:
    """As squeue writes it: `afterany:12(unfulfilled),singleton`."""
    if not known:
        return ""
    parts = [f"{kind}:{one}" for kind, jobs in known.items() if isinstance(jobs, list) for one in jobs]
    parts += ["singleton"] if known.get("singleton") else []
    return ("?" if known.get("satisfy") == "any" else ",").join(parts)


def _time(seconds: int | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC).astimezone() if seconds else None
