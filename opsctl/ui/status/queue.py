"""The queue as rows for people, and whose jobs they are."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from datetime import datetime

from opsctl.core.account import unix_group
from opsctl.core.output import printable, shortened
from opsctl.core.timestamps import iso
from opsctl.slurm.durations import format_duration
from opsctl.slurm.states import Reason
from opsctl.slurm.types import Job

#: What a pending job waits for, in the reader's words; any other reason stands as Slurm says it.
_WAITS_FOR: dict[str, str] = {
    Reason.ARRAY_TASK_LIMIT: "the task before it",
    Reason.DEPENDENCY: "the job before it",
    Reason.DEPENDENCY_NEVER_SATISFIED: "what can never come",
    Reason.BEGIN_TIME: "its begin time",
    Reason.PRIORITY: "jobs of higher priority",
    Reason.RESOURCES: "free nodes",
    Reason.NONE: "Slurm's scheduler to consider it",
}
_HELD: dict[str, str] = {
    Reason.HELD_BY_USER: "held by its owner",
    Reason.HELD_BY_ADMIN: "held by an administrator",
}
_COLUMNS = ("  JOB", "USER", "NAME", "PART.", "STATE", "NODES", "TIME", "LIMIT", "WHERE OR WHY")
#: (column, characters): columns are shortened to these, one after the other, until a row fits.
_SHORTENED = ((2, 24), (8, 40), (2, 12), (1, 8), (8, 28), (3, 8), (0, 16), (8, 16))
_GAP = "  "


def queue_table(jobs: Sequence[tuple[Job, bool]], width: int | None, now: datetime) -> list[str]:
    """Return a table of (job, is it the run's own), own ones marked `*`, in `width` characters; None: any width."""
    rows = [list(_COLUMNS), *([printable(cell) for cell in _row(job, own, now)] for job, own in jobs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    if width is not None:
        too_much = sum(widths) + len(_GAP) * (len(widths) - 1) - width
        for column, least in _SHORTENED:
            cut = min(max(0, too_much), max(0, widths[column] - least))
            widths[column] -= cut
            too_much -= cut
    lines = []
    for row in rows:
        *front, last = row
        cells = [shortened(text, wide).ljust(wide) for text, wide in zip(front, widths, strict=False)]
        # Of the last column the beginning says most, of a name both ends.
        lines.append(_GAP.join([*cells, last if len(last) <= widths[-1] else last[: widths[-1] - 1] + "…"]).rstrip())
    return lines


def why(job: Job) -> str:
    """Return where a job runs, or what it waits for and its expected start."""
    if job.is_held:
        return _HELD.get(job.reason, f"held ({job.reason if job.is_pending else job.state})")
    if not job.is_pending:
        return job.nodes
    said = f"waits for {_WAITS_FOR[job.reason]}" if job.reason in _WAITS_FOR else f"waits: {job.reason}"
    return f"at {iso(job.started_at, 'minutes')}, {said}" if job.started_at else said


def _row(job: Job, own: bool, now: datetime) -> list[str]:
    pending = job.is_pending
    limit = "none" if job.time_limit_s is None else format_duration(job.time_limit_s)
    return [
        f"{'*' if own else ' '} {job.display_id}",
        job.user,
        job.name,
        job.partition,
        "held" if job.is_held else job.state.lower(),
        str(job.node_count),
        "" if pending else format_duration(job.elapsed_at_s(now)),
        limit,
        why(job),
    ]


def interested(group: str | None) -> set[str]:
    """Return the accounts whose jobs `queue` shows: the group's and the caller's. Raises RunFileError."""
    return {_me()} | (group_members(group) if group else set())


def group_members(group: str) -> set[str]:
    """Return the accounts in a Unix group: listed members, and those whose primary group it is. Raises RunFileError."""
    found = unix_group(group)
    return {*found.gr_mem, *(entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == found.gr_gid)}


def _me() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())  # squeue shows a user without a name by his number too
