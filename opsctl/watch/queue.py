"""The queue as rows for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from opsctl.slurm.durations import format_duration
from opsctl.slurm.types import Job
from opsctl.watch.pulse import is_held

#: Slurm's reasons in the reader's words; any other stands as Slurm says it.
_REASONS = {
    "JobArrayTaskLimit": "waits for the task before it",
    "Dependency": "waits for the chain before it",
    "DependencyNeverSatisfied": "waits for what can never come",
    "JobHeldUser": "held by its owner: scontrol release",
    "JobHeldAdmin": "held by an administrator",
    "BeginTime": "not before its begin time",
}
_COLUMNS = ("", "JOB", "USER", "NAME", "PARTITION", "STATE", "NODES", "TIME", "LIMIT", "START", "WHERE OR WHY")
#: Columns whose text is shortened, in this order, until a row fits; never below this many characters.
_SHORTENED = ((3, 12), (2, 8), (4, 8), (10, 24), (1, 14))
_GAP = "  "


def job_json(job: Job, own: bool) -> dict[str, Any]:
    """One job, with units in the names and times with zone."""
    return {
        "id": job.display_id,
        "job_id": job.job_id,
        "array_job_id": job.array_job_id,
        "array_task": job.array_task or None,
        "own": own,
        "name": job.name,
        "user": job.user,
        "partition": job.partition,
        "state": job.state,
        "reason": None if job.reason in ("", "None") else job.reason,
        "held": is_held(job),
        "nodes": job.nodes or None,
        "node_count": job.node_count,
        "elapsed_s": job.elapsed_s,
        "time_limit_s": job.time_limit_s,
        "submitted_at": iso(job.submitted_at),
        "started_at": iso(job.started_at) if job.state != "PENDING" else None,
        "expected_start_at": iso(job.started_at) if job.state == "PENDING" else None,
        "ends_at": iso(job.ends_at) if job.state != "PENDING" else None,
        "dependency": job.dependency or None,
    }


def queue_table(jobs: Sequence[tuple[Job, bool]], width: int | None) -> list[str]:
    """Lines of a table of (job, is it the run's own), own ones marked `*`, in `width` characters; None: any width."""
    rows = [list(_COLUMNS), *(_row(job, own) for job, own in jobs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    if width is not None:
        too_much = sum(widths) + len(_GAP) * (len(widths) - 1) - width
        for column, least in _SHORTENED:
            cut = min(max(0, too_much), max(0, widths[column] - least))
            widths[column] -= cut
            too_much -= cut
    lines = []
    for row in rows:
        cells = [shortened(text, width).ljust(width) for text, width in zip(row, widths, strict=True)]
        lines.append(_GAP.join(cells).rstrip())
    return lines


def why(job: Job) -> str:
    """Where a running job runs, or what a waiting one waits for."""
    if job.state == "PENDING":
        return _REASONS.get(job.reason, job.reason)
    return job.nodes


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` characters, its middle left out: both ends tell it apart. Control characters go."""
    clean = "".join(c if c.isprintable() else "?" for c in text)
    if len(clean) <= width:
        return clean
    tail = (width - 1) // 2
    return clean[: width - 1 - tail] + "…" + clean[len(clean) - tail :]


def iso(moment: datetime | None, timespec: str = "seconds") -> str | None:
    """ISO 8601 with zone."""
    return moment.astimezone().isoformat(timespec=timespec) if moment else None


def _row(job: Job, own: bool) -> list[str]:
    pending = job.state == "PENDING"
    limit = "none" if job.time_limit_s is None else format_duration(job.time_limit_s)
    return [
        "*" if own else "",
        job.display_id,
        job.user,
        job.name,
        job.partition,
        "held" if is_held(job) else job.state.lower(),
        str(job.node_count),
        "" if pending else format_duration(job.elapsed_s),
        limit,
        iso(job.started_at, "minutes") or "",
        why(job),
    ]
