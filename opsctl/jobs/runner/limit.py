"""The job's time limit: how long the trainer may train, and the warning before the limit.

The trainer is started with an exit duration that ends a margin before the limit.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from opsctl.core.timestamps import iso, now
from opsctl.jobs.signals import Signals
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.durations import format_duration
from trainer.recipe.options import Options, to_arguments

#: Zero switches the trainer's check off, so a job that is already late gets the shortest duration there is.
_SHORTEST_MINUTES = 0.01
#: Slurm checks limits once a minute: its warning may come this much earlier than asked for, and somewhat later.
WARNING_EARLY_S = 90.0


@dataclass(frozen=True)
class Limit:
    """The end that Slurm has set for a job."""

    ends_at: datetime | None  # None: it has none
    length_s: int | None  # the limit itself; None without one


def ask_limit(client: SlurmClient, job_id: int) -> Limit | None:
    """Return the limit that Slurm has now; None for a job that it does not show. Raises SlurmError."""
    for job in client.jobs(job_ids=[job_id]):
        if job.job_id == job_id:
            return Limit(None, None) if job.time_limit_s is None else Limit(job.ends_at, job.time_limit_s)
    return None


def exit_minutes(ends_at: datetime | None, now: datetime, margin_s: float) -> float | None:
    """Minutes from `now` until `margin_s` before `ends_at`; None without a limit, never zero or less."""
    if ends_at is None:
        return None
    return max(_SHORTEST_MINUTES, ((ends_at - now).total_seconds() - margin_s) / 60)


def exit_duration_arguments(asked: Options, minutes: float | None) -> list[str]:
    """Return the arguments that make the trainer leave after `minutes`, or sooner if `asked` does; none without either.

    They must come last: the trainer takes the last of several values.
    """
    wanted = [value for value in (minutes, asked.exit_duration_in_mins) if value]
    return to_arguments({"exit_duration_in_mins": f"{min(wanted):.3f}"}) if wanted else []


def is_limits_warning(signals: Signals, limit: Limit, margin_s: float) -> bool:
    """Return whether the first signal is the warning that Slurm sends `margin_s` before the limit."""
    if limit.ends_at is None or signals.warned_at is None or signals.received[0] != signal.SIGUSR1:
        return False
    warned_at = now() - timedelta(seconds=time.monotonic() - signals.warned_at)
    return (limit.ends_at - warned_at).total_seconds() <= margin_s + WARNING_EARLY_S


def why_signalled(signals: Signals, limit: Limit, margin_s: float) -> str:
    """Return the reason for the signals that the job got: the limit, or only their names."""
    if not is_limits_warning(signals, limit, margin_s):
        return f"the job got {signals.names()}"
    length = f" of {format_duration(limit.length_s)}" if limit.length_s is not None else ""
    return f"the time limit{length} comes at {iso(limit.ends_at)}, {signals.names()}"
