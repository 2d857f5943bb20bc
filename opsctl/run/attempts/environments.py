"""What attempts were started with, as their first nodes wrote it down, and how that changed from one to the next."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from opsctl.run.attempts.events import Attempt
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.attempt_folder import started_with
from trainer.formats.attempt.environment import Environment, differences, digest_of

#: More than so many changes are counted.
_TOLD = 4


def environment_of(paths: RunPaths, attempt: Attempt) -> Environment | None:
    """What `attempt` was started with; None where that was not written, or is another job's of the same id by now."""
    found = started_with(paths.output, paths.attempt_folder(attempt.job_id))
    if found is None or attempt.is_open:
        return found
    return found if digest_of(found) == attempt.environment else None


def last_environment(paths: RunPaths, attempts: Sequence[Attempt]) -> tuple[Attempt, Environment] | None:
    """The newest attempt that says what it was started with, and that."""
    for attempt in reversed(attempts):
        if (found := environment_of(paths, attempt)) is not None:
            return attempt, found
    return None


def changes(paths: RunPaths, attempts: Sequence[Attempt]) -> dict[str, tuple[str, ...]]:
    """Attempt's id -> how what it was started with differs from what the last one before it was; only where it does.

    Folders are read of those alone whose digest is another.
    """
    found: dict[str, tuple[str, ...]] = {}
    for before, after in changed_pairs(attempts):
        old, new = environment_of(paths, before), environment_of(paths, after)
        told = differences(old, new) if old is not None and new is not None else []
        found[after.id] = tuple(told) or ("what changed is no longer to be seen",)
    return found


def changed_pairs(attempts: Sequence[Attempt]) -> list[tuple[Attempt, Attempt]]:
    """Each attempt that was started with something else than the last before it that is known, and that one."""
    known = [attempt for attempt in attempts if attempt.environment]
    return [(before, after) for before, after in itertools.pairwise(known) if before.environment != after.environment]


def in_a_clause(told: Sequence[str]) -> str:
    """The first few differences, and how many more there are."""
    more = len(told) - _TOLD
    return ", ".join(told[:_TOLD]) + (f" and {more} more" if more > 0 else "")
