"""Attempts as a table and as JSON. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Container, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from opsctl.core.output import printable, table_lines
from opsctl.core.timestamps import iso
from opsctl.run.attempts.ending import ending_words
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.outcome import describe
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.attempt_folder import started_with
from opsctl.slurm.durations import format_duration
from trainer.formats.attempt.environment import Environment, differences, digest_of

#: Changes that a table names; further ones are counted.
_NAMED = 4


def environment_of(paths: RunPaths, attempt: Attempt) -> Environment | None:
    """Return the environment of `attempt`; None if it was not recorded, or a later job with the same id replaced it."""
    found = started_with(paths.output, paths.attempt_folder(attempt.job_id))
    if found is None or attempt.is_open:
        return found
    return found if digest_of(found) == attempt.environment else None


def changes(paths: RunPaths, attempts: Sequence[Attempt]) -> dict[str, tuple[str, ...]]:
    """Return attempt id -> differences from the previous attempt's environment, for attempts with any."""
    found: dict[str, tuple[str, ...]] = {}
    for before, after in changed_pairs(attempts):
        old, new = environment_of(paths, before), environment_of(paths, after)
        told = differences(old, new) if old is not None and new is not None else []
        found[after.id] = tuple(told) or ("the change is no longer known",)
    return found


def changed_pairs(attempts: Sequence[Attempt]) -> list[tuple[Attempt, Attempt]]:
    """Return (previous, attempt) for each attempt whose environment differs from the previous known one."""
    known = [attempt for attempt in attempts if attempt.environment]
    return [(before, after) for before, after in itertools.pairwise(known) if before.environment != after.environment]


def in_a_clause(differences: Sequence[str]) -> str:
    """Return the first differences in a clause, and the number of the others."""
    more = len(differences) - _NAMED
    return ", ".join(differences[:_NAMED]) + (f" and {more} more" if more > 0 else "")


#: Attempt id -> differences between its environment and the previous one.
Changes = Mapping[str, tuple[str, ...]]
_HEAD = ("#", "JOB", "STARTED", "RAN", "ITERATIONS", "CHECKPOINT", "ENDED", "EXIT", "WHY")


def attempt_table(
    attempts: Sequence[Attempt], unknown: Container[str] = (), changes: Changes | None = None
) -> list[str]:
    """Return the lines of a table, oldest first. unknown: ids of open attempts that Slurm does not confirm."""
    changes = changes or {}
    rows = [
        _HEAD,
        *(
            tuple(map(printable, _row(attempt, attempt.id not in unknown, changes.get(attempt.id, ()))))
            for attempt in attempts
        ),
    ]
    return table_lines(rows)


def state_word(attempt: Attempt, is_known: bool) -> str:
    """Return how it ended, or if it runs."""
    if attempt.reason is not None:
        return ending_words(attempt.reason)
    return "running" if is_known else "not known"


class PrintedAttempt(Attempt, frozen=True, kw_only=True):
    """One attempt of an array task, from opening to closing."""

    job: Annotated[str, Meta(description="The job as squeue shows it.")]
    state: Annotated[Literal["running", "ended", "not known"], Meta(description="Its state according to Slurm.")]
    made_checkpoint: Annotated[bool, Meta(description="True if the latest checkpoint changed during the attempt.")]
    environment_changes: Annotated[
        tuple[str, ...],
        Meta(description="Differences from the previous attempt's environment; only in `attempts`."),
    ] = ()


def printed_attempt(attempt: Attempt, is_known: bool, changes: Changes | None = None) -> PrintedAttempt:
    """Return `attempt` as printed. is_known: Slurm confirms that an open attempt runs."""
    state: Literal["running", "ended", "not known"] = "running" if is_known else "not known"
    return PrintedAttempt(
        **msgspec.structs.asdict(attempt),
        job=attempt.display_id,
        state=state if attempt.is_open else "ended",
        made_checkpoint=attempt.made_checkpoint,
        environment_changes=(changes or {}).get(attempt.id, ()),
    )


def _row(attempt: Attempt, is_known: bool, changes: Sequence[str]) -> tuple[str, ...]:
    return (
        str(attempt.number),
        attempt.job_and_restart,
        iso(attempt.opened_at) or "?",
        _duration(attempt),
        f"{_number(attempt.iteration_at_start, '0')} -> {_number(attempt.iteration_at_end, '?')}",
        _number(attempt.checkpoint_at_end, "-"),
        state_word(attempt, is_known),
        _number(attempt.exit_code, "-"),
        _why(attempt, changes),
    )


def _why(attempt: Attempt, changes: Sequence[str]) -> str:
    cause = attempt.verdict.words if attempt.verdict is not None and attempt.verdict.is_known else ""
    lost = f"lost {', '.join(attempt.lost_nodes)}" if attempt.lost_nodes else ""
    failed = describe(attempt.first_failure) if attempt.first_failure else ""
    news = f"started with {in_a_clause(changes)}" if changes else ""
    return "; ".join(filter(None, (cause, lost, failed, attempt.note, news)))


def _duration(attempt: Attempt) -> str:
    if attempt.opened_at is None or attempt.closed_at is None:
        return "-"
    return format_duration((attempt.closed_at - attempt.opened_at).total_seconds())


def _number(value: int | None, otherwise: str) -> str:
    return otherwise if value is None else str(value)
