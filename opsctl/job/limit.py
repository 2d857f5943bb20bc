"""How long the trainer may train: until a margin before Slurm ends the job."""

from __future__ import annotations

from datetime import datetime

from trainer.recipe.options import Options, to_arguments

#: Zero switches the trainer's check off, so a job that is already late gets the shortest duration there is.
_SHORTEST_MINUTES = 0.01


def exit_minutes(ends_at: datetime | None, now: datetime, margin_s: float) -> float | None:
    """Minutes from `now` until `margin_s` before `ends_at`; None without a limit, never zero or less."""
    if ends_at is None:
        return None
    return max(_SHORTEST_MINUTES, ((ends_at - now).total_seconds() - margin_s) / 60)


def exit_duration_arguments(asked: Options, minutes: float | None) -> list[str]:
    """The words that have the trainer leave after `minutes`, or sooner where `asked` says so; none without either.

    They are to stand last: of several values the trainer takes the last.
    """
    wanted = [value for value in (minutes, asked.exit_duration_in_mins) if value]
    return to_arguments({"exit_duration_in_mins": f"{min(wanted):.3f}"}) if wanted else []
