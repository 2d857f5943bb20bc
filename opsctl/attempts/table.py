"""Attempts as people and programs read them. Pure."""

from __future__ import annotations

from collections.abc import Container, Sequence
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from opsctl.attempts.cause import describe
from opsctl.attempts.events import Attempt
from opsctl.moments import iso
from opsctl.output import printable
from opsctl.slurm.durations import format_duration

_HEAD = ("#", "JOB", "STARTED", "RAN", "ITERATIONS", "CHECKPOINT", "ENDED", "EXIT", "WHY")


def attempt_table(attempts: Sequence[Attempt], unknown: Container[str] = ()) -> list[str]:
    """Lines of a table, oldest first. `unknown`: ids of open ones of which Slurm did not say that they run."""
    rows = [_HEAD, *(tuple(map(printable, _row(attempt, attempt.id not in unknown))) for attempt in attempts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD) - 1)]
    return [
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1])).rstrip()
        for row in rows
    ]


def state_word(attempt: Attempt, is_known: bool) -> str:
    """How it ended, or whether it runs."""
    if attempt.reason is not None:
        return attempt.reason
    return "running" if is_known else "not known"


class PrintedAttempt(Attempt, frozen=True, kw_only=True):
    """One array task's try at the training, from opening to closing."""

    job: Annotated[str, Meta(description="The job as squeue shows it.")]
    state: Annotated[Literal["running", "ended", "not known"], Meta(description="Where it stands, as Slurm knows it.")]
    made_checkpoint: Annotated[
        bool, Meta(description="Whether another checkpoint than at its start was the latest when it ended.")
    ]


def printed_attempt(attempt: Attempt, is_known: bool) -> PrintedAttempt:
    """`attempt` for programs. `is_known`: whether Slurm said that it runs, if it is open."""
    state: Literal["running", "ended", "not known"] = "running" if is_known else "not known"
    return PrintedAttempt(
        **msgspec.structs.asdict(attempt),
        job=attempt.display_id,
        state=state if attempt.is_open else "ended",
        made_checkpoint=attempt.made_checkpoint,
    )


def _row(attempt: Attempt, is_known: bool) -> tuple[str, ...]:
    return (
        str(attempt.number),
        attempt.display_id,
        _moment(attempt.opened_at),
        _duration(attempt),
        f"{_number(attempt.iteration_at_start, '0')} -> {_number(attempt.iteration_at_end, '?')}",
        _number(attempt.checkpoint_at_end, "-"),
        state_word(attempt, is_known),
        _number(attempt.exit_code, "-"),
        _why(attempt),
    )


def _why(attempt: Attempt) -> str:
    lost = f"lost {', '.join(attempt.lost_nodes)}" if attempt.lost_nodes else ""
    failed = describe(attempt.first_failure) if attempt.first_failure else ""
    return "; ".join(filter(None, (lost, failed, attempt.note)))


def _moment(moment: datetime | None) -> str:
    return iso(moment) or "?"


def _duration(attempt: Attempt) -> str:
    if attempt.opened_at is None or attempt.closed_at is None:
        return "-"
    return format_duration((attempt.closed_at - attempt.opened_at).total_seconds())


def _number(value: int | None, otherwise: str) -> str:
    return otherwise if value is None else str(value)
