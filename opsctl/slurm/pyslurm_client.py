"""The optional backend over pyslurm: a program of its own asks libslurm for jobs and nodes, commands do the rest.

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
from opsctl.core.timestamps import now
from opsctl.slurm.client import Deadline
from opsctl.slurm.commands import CommandClient
from opsctl.slurm.nodes import Node, expand_nodes
from opsctl.slurm.process import Answer, judged, refused, run_slurm, unreachable
from opsctl.slurm.rows import has_ended
from opsctl.slurm.states import Phase, phase_of
from opsctl.slurm.types import Job, JobEnd

#: Attributes of pyslurm.Job, in the order in which `job_of` reads them.
JOB_FIELDS = (
    *("id", "array_id", "array_task_id", "array_tasks_waiting", "array_tasks_parallel", "name", "user_name"),
    *("partition", "state", "state_reason", "allocated_nodes", "num_nodes", "run_time", "time_limit", "submit_time"),
    *("start_time", "end_time", "dependencies", "comment", "working_directory", "exit_code", "exit_code_signal"),
)
NODE_FIELDS = ("name", "state", "reason", "partitions", "real_memory", "address")
PARTITION_FIELDS = ("name", "is_default")
#: Flags of a node's state that sinfo shows in place of it, the first that is there; then those that it marks it with.
_SHOWN_FLAGS = {
    "INVALID_REG": "inval",
    "COMPLETING": "completing",
    "MAINTENANCE": "maint",
    "RESERVED": "reserved",
    "PLANNED": "planned",
}
_MARKS = {
    "NOT_RESPONDING": "*",
    "POWERING_DOWN": "%",
    "POWERED_DOWN": "~",
    "POWER_DOWN": "!",
    "POWERING_UP": "#",
    "REBOOT_REQUESTED": "@",
    "REBOOT_ISSUED": "^",
}
_BUSY = ("ALLOCATED", "MIXED", "COMPLETING")


class PyslurmClient(CommandClient):
    """See SlurmClient. Raises SlurmUnasked if pyslurm is missing or of another release than this Slurm."""

    _is_checked = False

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        """Return the jobs in the queue. Empty `users` or `job_ids` are no question."""
        names = None if users is None else set(users)
        ids = None if job_ids is None else set(job_ids)
        if names == set() or ids == set():
            return []
        (rows,) = self._rows(jobs=JOB_FIELDS)
        return [
            job
            for job in jobs_in_queue(rows)
            if (names is None or job.user in names) and (ids is None or {job.job_id, job.array_job_id} & ids)
        ]

    def nodes(self, folded: str | None = None) -> list[Node]:
        """Return the nodes. A name that Slurm does not have is left out."""
        wanted = None if folded is None else set(expand_nodes(folded))
        found = nodes_of(*self._rows(nodes=NODE_FIELDS, partitions=PARTITION_FIELDS))
        return [node for node in found if wanted is None or node.name in wanted]

    def node_address(self, node: str) -> str:
        """Return its address. Raises SlurmError for a node that Slurm does not have."""
        for name, *_, address in self._rows(nodes=NODE_FIELDS)[0]:
            if name == node and address:
                return str(address)
        raise SlurmError(f"Slurm refused to show node {node}: Node {node} not found")

    def _ends_in_memory(self, job_ids: Sequence[int]) -> dict[int, JobEnd]:
        return ends_of(self._rows(jobs=JOB_FIELDS)[0], job_ids, now()) if job_ids else {}

    def _rows(self, **questions: Sequence[str]) -> list[list[list[Any]]]:
        """Ask pyslurm for the attributes of each collection."""
        self._refuse_what_is_out_of_bounds()
        words = [f"{name}:{','.join(fields)}" for name, fields in questions.items()]
        return self._patiently(lambda time_s: self._asked(words, time_s))

    def _asked(self, words: Sequence[str], time_s: float) -> list[list[list[Any]]]:
        deadline = Deadline(time_s)
        self._check_release(deadline)
        # A Python that is started elsewhere and without our settings has to find this package.
        environment = {**self.environment, "PYTHONPATH": _own_folder()}
        command = [sys.executable, "-P", "-m", "opsctl.slurm.pyslurm_program", *words]
        try:
            ended = run_program(command, environment, deadline.remaining_s())
        except Overdue:
            raise unreachable("pyslurm", f"no answer within {time_s:.0f} s") from None
        answer = judged(Answer(ended.code, "", ended.err.decode(errors="replace")), "pyslurm")
        if answer.code:
            raise SlurmError(f"Slurm refused to answer pyslurm: {answer.words()}")
        found: list[list[list[Any]]] = json.loads(ended.out)
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
            raise refused(answer, "tell its release")
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


def ends_of(rows: Iterable[Sequence[Any]], job_ids: Iterable[int], now: datetime) -> dict[int, JobEnd]:
    """Return how those of `job_ids` ended that had ended by `now`."""
    wanted = set(job_ids)
    found = {}
    for row in rows:
        job = job_of(row)
        if (job.job_id in wanted or job.array_job_id in wanted) and has_ended(job.state, job.ends_at, now):
            found[job.job_id] = JobEnd.of(job, row[20] or 0, row[21] or 0)
    return found


def job_of(row: Sequence[Any]) -> Job:
    """Return a job from its values in `JOB_FIELDS`."""
    job_id, array_id, task, waiting, parallel, name, user, partition, state, reason = row[:10]
    nodes, node_count, run_s, limit_min, submitted_s, started_s, ends_s, dependencies, comment, work_dir = row[10:20]
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


def nodes_of(rows: Iterable[Sequence[Any]], partitions: Iterable[Sequence[Any]]) -> list[Node]:
    """Nodes from their values in `NODE_FIELDS`; `partitions` are those in `PARTITION_FIELDS`."""
    default = {name for name, is_default in partitions if is_default}
    return [
        Node(
            name=name,
            state=sinfos_state(state),
            reason=reason or "",
            partitions=tuple(f"{one}*" if one in default else one for one in within),
            memory_mib=memory_mib or 0,
        )
        for name, state, reason, within, memory_mib, _ in rows
    ]


def sinfos_state(state: str) -> str:
    """Return a state with its flags, `IDLE+DRAIN`, as sinfo's one long word: `drained`."""
    base, *flags = state.upper().split("+")
    marks = "".join(mark for flag, mark in _MARKS.items() if flag in flags)[:1]
    if "DRAIN" in flags:
        shown = "draining" if base in _BUSY or "COMPLETING" in flags else "drained"
    elif "FAIL" in flags:
        shown = "failing" if base in _BUSY or "COMPLETING" in flags else "fail"
    elif base == "DOWN":
        shown = "down"
    else:
        shown = next((word for flag, word in _SHOWN_FLAGS.items() if flag in flags), base.lower())
    return shown + marks


def _dependency(said: Mapping[str, Any] | None) -> str:
    """As squeue writes it: `afterany:12(unfulfilled),singleton`."""
    if not said:
        return ""
    parts = [f"{kind}:{one}" for kind, jobs in said.items() if isinstance(jobs, list) for one in jobs]
    parts += ["singleton"] if said.get("singleton") else []
    return ("?" if said.get("satisfy") == "any" else ",").join(parts)


def _time(seconds: int | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC).astimezone() if seconds else None
