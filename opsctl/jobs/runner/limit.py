"""The job's time limit: how long the trainer may train, the warnings before the limit, and a raised limit.

The trainer is started with an exit duration that ends a margin before the limit. Slurm is asked again shortly before
that moment. If the limit was raised, a note in the attempt's folder lets the trainer continue until the margin before
the new one. If this fails (no answer, no disk, this process gone), the trainer leaves in time for the known limit. A
lowered limit shows by Slurm's own warning.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from opsctl.core.errors import SlurmError
from opsctl.core.files.state_files import write_state
from opsctl.core.timestamps import iso, now
from opsctl.jobs.runner.watch_thread import WatchThread
from opsctl.jobs.signals import Signals
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.durations import format_duration
from trainer.formats.attempt.attempt_records import LaterExit
from trainer.recipe.options import Options, to_arguments

#: Zero switches the trainer's check off, so a job that is already late gets the shortest duration there is.
_SHORTEST_MINUTES = 0.01
#: Seconds before the trainer is to leave at which Slurm is asked whether the limit is still the same.
ASKED_BEFORE_S = (300.0, 120.0, 30.0)
#: Where the limit has been taken away the trainer goes on for this long, and Slurm is then asked again.
_WITHOUT_LIMIT = timedelta(days=7)
#: Slurm looks at limits once a minute: its warning may come this much earlier than asked for, and somewhat later.
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


def limit_words(limit: Limit) -> str:
    """Return `the time limit of 2:00:00 comes at ...`; empty without a limit."""
    if limit.ends_at is None:
        return ""
    length = f" of {format_duration(limit.length_s)}" if limit.length_s is not None else ""
    return f"the time limit{length} comes at {iso(limit.ends_at)}"


def is_limits_warning(received: list[int], limit: Limit, now: datetime, margin_s: float) -> bool:
    """Return whether the first of the signals is the warning that Slurm sends `margin_s` before the limit."""
    if limit.ends_at is None or received[:1] != [signal.SIGUSR1]:
        return False
    return (limit.ends_at - now).total_seconds() <= margin_s + WARNING_EARLY_S


def next_question(leaves_at: datetime, asked_at: datetime) -> datetime | None:
    """When Slurm is next to be asked, for a trainer that leaves at `leaves_at`; None when that is too near."""
    moments = (leaves_at - timedelta(seconds=before_s) for before_s in ASKED_BEFORE_S)
    return next((moment for moment in moments if moment > asked_at), None)


class LimitWatch(WatchThread):
    """Asks Slurm again as the limit comes near."""

    end_wait_s = 1.0

    def __init__(
        self,
        limit: Limit,
        margin_s: float,
        ask: Callable[[], Limit | None],
        root: Path,
        note: Path | None,
        clock: Callable[[], datetime] = now,
    ) -> None:
        """`ask`: the limit as Slurm has it now, None without an answer. note: the file in `root`, the run's output
        folder, that lets the trainer go on; None where the user asked it to leave sooner than the limit.
        """
        super().__init__("limit")
        self.limit, self.margin_s = limit, margin_s
        self._ask, self._root, self._note, self._clock = ask, root, note, clock
        self._leaves_at: datetime | None = None  # when the trainer leaves, as far as is known
        self._warned = ""

    def start(self) -> None:
        """Begin, where there is a limit to watch."""
        if self.limit.ends_at is not None:
            super().start()

    def check(self) -> float | None:
        """Ask Slurm, except the first time, when the limit is fresh."""
        at = self._clock()
        if self._leaves_at is None:
            self._leaves_at = self._exit_of(self.limit, at)
        else:
            with contextlib.suppress(SlurmError):
                self._leaves_at = self._taken(self._ask(), self._leaves_at, at)
        question = next_question(self._leaves_at, at)
        return None if question is None else max(0.0, (question - self._clock()).total_seconds())

    def why(self, signals: Signals) -> str:
        """Return the reason for the signals that the job got: the limit, or only their names."""
        if not self._warned and is_limits_warning(signals.received, self.limit, self._clock(), self.margin_s):
            self._warned = limit_words(self.limit)
        return f"{self._warned}, {signals.names()}" if self._warned else f"the job got {signals.names()}"

    @property
    def has_warned(self) -> bool:
        """Return whether the first signal was the limit's warning."""
        return bool(self._warned)

    def _exit_of(self, limit: Limit, now: datetime) -> datetime:
        return now + _WITHOUT_LIMIT if limit.ends_at is None else limit.ends_at - timedelta(seconds=self.margin_s)

    def _taken(self, limit: Limit | None, leaves_at: datetime, now: datetime) -> datetime:
        """Use `limit` from now on, and let the trainer use it; return when it leaves."""
        if limit is None or (limit == self.limit and limit.ends_at is not None):
            return leaves_at
        leaves_at, self.limit = self._exit_of(limit, now), limit
        said = limit_words(limit) or "the time limit was taken away"
        if self._note is not None:
            try:
                write_state(self._root, self._note, LaterExit(leaves_at.replace(microsecond=0), said))
            except OSError as error:
                self.report(f"opsctl: {said}, but {self._note} cannot be written: {error.strerror}")
                return leaves_at
            said = f"{said}; the trainer leaves at {iso(leaves_at)} at the latest"
        self.report(f"opsctl: the time limit has changed: {said}")
        return leaves_at
