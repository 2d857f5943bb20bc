"""pyslurm's values into ours. Pure; pyslurm itself is not needed.

Names and units are those of pyslurm 25.11: times are seconds since the epoch, a time limit is minutes, None or
"UNLIMITED"; a folded array has no task number and says in `array_tasks_waiting` which have not started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from opsctl.slurm.nodes import Node
from opsctl.slurm.rows import has_ended
from opsctl.slurm.states import Phase, phase_of
from opsctl.slurm.types import Job, JobEnd

#: Attributes of pyslurm.Job, in the order in which `job_of` reads them.
JOB_FIELDS = (
    "id",
    "array_id",
    "array_task_id",
    "array_tasks_waiting",
    "array_tasks_parallel",
    "name",
    "user_name",
    "partition",
    "state",
    "state_reason",
    "allocated_nodes",
    "num_nodes",
    "run_time",
    "time_limit",
    "submit_time",
    "start_time",
    "end_time",
    "dependencies",
    "comment",
    "working_directory",
    "exit_code",
    "exit_code_signal",
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


def jobs_in_queue(rows: Iterable[Sequence[Any]]) -> list[Job]:
    """What is in the queue now: pyslurm tells of what has ended as well, for as long as the controller knows it."""
    return [job for job in map(job_of, rows) if phase_of(job.state) is not Phase.ENDED]


def ends_of(rows: Iterable[Sequence[Any]], job_ids: Iterable[int], now: datetime) -> dict[int, JobEnd]:
    """How those of `job_ids` ended that had ended by `now`."""
    wanted = set(job_ids)
    found = {}
    for row in rows:
        job = job_of(row)
        if (job.job_id in wanted or job.array_job_id in wanted) and has_ended(job.state, job.ends_at, now):
            found[job.job_id] = JobEnd(
                job_id=job.job_id,
                state=job.state,
                exit_code=row[20] or 0,
                signal=row[21] or 0,
                started_at=job.started_at,
                ended_at=job.ends_at,
                nodes=job.nodes,
                name=job.name,
                user=job.user,
                comment=job.comment,
                work_dir=job.work_dir,
                submitted_at=job.submitted_at,
            )
    return found


def job_of(row: Sequence[Any]) -> Job:
    """A job from its values in `JOB_FIELDS`."""
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
    """A state with its flags, `IDLE+DRAIN`, as sinfo's one long word: `drained`."""
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
