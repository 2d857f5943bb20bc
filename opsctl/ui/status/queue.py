"""The queue as rows for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.output import printable, shortened
from opsctl.core.timestamps import iso, to_the_second
from opsctl.slurm.durations import format_duration
from opsctl.slurm.states import Reason
from opsctl.slurm.types import Job
from trainer.formats.json_text import Moment

#: What a pending job waits for, in the reader's words; any other reason stands as Slurm says it.
_WAITS_FOR: dict[str, str] = {
    Reason.ARRAY_TASK_LIMIT: "the task before it",
    Reason.DEPENDENCY: "the chain before it",
    Reason.DEPENDENCY_NEVER_SATISFIED: "what can never come",
    Reason.BEGIN_TIME: "its begin time",
    Reason.PRIORITY: "jobs of higher priority",
    Reason.RESOURCES: "free nodes",
    Reason.NONE: "the scheduler to look at it",
}
_HELD: dict[str, str] = {
    Reason.HELD_BY_USER: "held by its owner",
    Reason.HELD_BY_ADMIN: "held by an administrator",
}
_COLUMNS = ("  JOB", "USER", "NAME", "PART.", "STATE", "NODES", "TIME", "LIMIT", "WHERE OR WHY")
#: (column, characters): columns are shortened to these, one after the other, until a row fits.
_SHORTENED = ((2, 24), (8, 40), (2, 12), (1, 8), (8, 28), (3, 8), (0, 16), (8, 16))
_GAP = "  "


class PrintedJob(Struct, frozen=True, kw_only=True):
    """One row of the queue: an array task, or the rest of an array that has not started."""

    id: Annotated[str, Meta(description="The id as squeue shows it, `12_2` or `12_[3-4%1]`.")]
    job_id: Annotated[int, Meta(description="Slurm's own id of it.")]
    array_job_id: Annotated[int, Meta(description="The id that sbatch printed.")]
    array_task: Annotated[str | None, Meta(description="Its place in the array, or what is pending of it.")]
    own: Annotated[bool, Meta(description="Whether it is the run's.")]
    name: Annotated[str, Meta(description="Its name.")]
    user: Annotated[str, Meta(description="Its owner.")]
    partition: Annotated[str, Meta(description="Its partition.")]
    state: Annotated[str, Meta(description="Slurm's long state, in capitals.")]
    reason: Annotated[str | None, Meta(description="Slurm's reason why it waits, if any.")]
    held: Annotated[bool, Meta(description="Whether only a person can let it start.")]
    nodes: Annotated[str | None, Meta(description="Its nodes, folded as Slurm does; null while it has none.")]
    node_count: Annotated[int, Meta(description="How many nodes it has or asks for.")]
    elapsed_s: Annotated[int, Meta(description="Seconds that it has run.")]
    time_limit_s: Annotated[int | None, Meta(description="Its time limit in seconds; null for none.")]
    submitted_at: Annotated[Moment | None, Meta(description="When it was submitted.")]
    started_at: Annotated[Moment | None, Meta(description="When it started; null while it is pending.")]
    expected_start_at: Annotated[Moment | None, Meta(description="When Slurm guesses that a pending one starts.")]
    ends_at: Annotated[Moment | None, Meta(description="When its limit ends it; null while it is pending.")]
    dependency: Annotated[str | None, Meta(description="What it waits for, in Slurm's words.")]


def printed_job(job: Job, own: bool) -> PrintedJob:
    """`job` for programs. `own`: whether it is the run's."""
    return PrintedJob(
        id=job.display_id,
        job_id=job.job_id,
        array_job_id=job.array_job_id,
        array_task=job.array_task or None,
        own=own,
        name=job.name,
        user=job.user,
        partition=job.partition,
        state=job.state,
        reason=None if job.reason in ("", Reason.NONE) else job.reason,
        held=job.is_held,
        nodes=job.nodes or None,
        node_count=job.node_count,
        elapsed_s=job.elapsed_s,
        time_limit_s=job.time_limit_s,
        submitted_at=to_the_second(job.submitted_at),
        started_at=None if job.is_pending else to_the_second(job.started_at),
        expected_start_at=to_the_second(job.started_at) if job.is_pending else None,
        ends_at=None if job.is_pending else to_the_second(job.ends_at),
        dependency=job.dependency or None,
    )


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
    """Where a job runs, or what it waits for and when Slurm expects it to start."""
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
