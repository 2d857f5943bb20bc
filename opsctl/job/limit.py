"""How long the trainer may train: until a margin before Slurm ends the job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from opsctl.runs.trainer_arguments import option_values

OPTION = "--exit-duration-in-mins"
#: Zero switches the trainer's check off, so a job that is already late gets the shortest duration there is.
_SHORTEST_MINUTES = 0.01


def exit_minutes(ends_at: datetime | None, now: datetime, margin_s: float) -> float | None:
    """Minutes from `now` until `margin_s` before `ends_at`; None without a limit, never zero or less."""
    if ends_at is None:
        return None
    return max(_SHORTEST_MINUTES, ((ends_at - now).total_seconds() - margin_s) / 60)


def with_exit_duration(arguments: Sequence[str], minutes: float | None) -> list[str]:
    """The trainer's arguments with the exit duration at the end; a shorter one that somebody asked for stays."""
    asked = [value for value in map(_as_float, option_values(arguments, OPTION)) if value is not None]
    # Of several the last counts, as in the trainer's own parser.
    wanted = [value for value in (minutes, asked[-1] if asked else None) if value is not None]
    if not wanted:
        return list(arguments)
    return [*arguments, OPTION, f"{min(wanted):.3f}"]


def _as_float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value > 0 else None
