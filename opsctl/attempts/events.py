"""Attempts: what ran and how it ended. Events in `.opsctl/attempts.jsonl`, folded by a pure function into values.

An event is one line, `{"event": "opened"|"closed", "id": ..., ...}`. Lines that are half written or of an unknown kind
are passed over, and so are fields of the wrong type: reading never fails for what somebody else wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from opsctl.records.state_files import append_state, make_shared_folder, read_lines
from opsctl.runs.paths import RunPaths
from trainer.formats.attempt_records import Failure, RankPlace
from trainer.formats.json_text import Moment, plain

OPENED, CLOSED = "opened", "closed"


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an attempt when it opens."""

    id: str  # unique also where job ids start over
    job_id: int
    array_job_id: int | None = None
    array_task: str = ""
    chain_submitted_at: Moment | None = None
    revision: str = ""
    user: str = ""
    nodes: tuple[str, ...] = ()
    opened_at: Moment | None = None
    kill_switch_path: str = ""  # where its trainer looks
    iteration_at_start: int | None = None  # of the last whole checkpoint; None: none yet


class Attempt(Opening, frozen=True, kw_only=True):
    """One array task's try at the training, from opening to closing. `reason` is None while it is open."""

    number: int  # 1 for the run's first: its place in the file
    closed_at: Moment | None = None
    closed_by: str = ""  # "job", or who closed it for the job
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    iteration_at_end: int | None = None  # the last one done, as the trainer says it, else the last checkpoint's
    checkpoint_at_end: int | None = None  # iteration of the last whole checkpoint
    first_failure: Failure | None = None
    other_failures: tuple[Failure, ...] = ()
    error_files: tuple[str, ...] = ()
    lost_nodes: tuple[str, ...] = ()
    ranks: tuple[RankPlace, ...] = ()
    note: str = ""

    @property
    def is_open(self) -> bool:
        return self.reason is None

    @property
    def display_id(self) -> str:
        """The job as squeue shows it."""
        return f"{self.array_job_id}_{self.array_task}" if self.array_task else str(self.job_id)

    @property
    def made_checkpoint(self) -> bool:
        """Whether a whole checkpoint later than the one it started from was there when it ended."""
        if self.checkpoint_at_end is None:
            return False
        return self.iteration_at_start is None or self.checkpoint_at_end > self.iteration_at_start

    def to_json(self) -> dict[str, Any]:
        return dict(plain(self))


class Event(Attempt, frozen=True, kw_only=True):
    """A line of the file: an opening has the fields of Opening, a closing its id and the other fields of Attempt."""

    event: str
    job_id: int = 0
    number: int = 0


_OPENING = Opening.__struct_fields__
_CLOSING = tuple(name for name in Attempt.__struct_fields__ if name not in (*_OPENING, "number"))


def fold(events: Iterable[Event]) -> list[Attempt]:
    """Attempts in the order they were opened.

    Of several closings the job's own counts, else the first; a closing without its opening is passed over.
    """
    attempts: dict[str, Attempt] = {}
    for event in events:
        known = attempts.get(event.id)
        if event.event == OPENED and known is None and event.job_id:
            attempts[event.id] = Attempt(number=len(attempts) + 1, **_fields(event, _OPENING))
        elif event.event == CLOSED and known is not None and _counts(event, known):
            attempts[event.id] = msgspec.structs.replace(known, **_fields(event, _CLOSING))
    return list(attempts.values())


def _counts(closing: Event, known: Attempt) -> bool:
    return closing.reason is not None and (known.is_open or (closing.closed_by == "job" and known.closed_by != "job"))


def read(paths: RunPaths) -> list[Attempt]:
    """The run's attempts so far; empty when there is no such file."""
    return fold(read_lines(paths.attempts, Event))


def append_opened(paths: RunPaths, attempt: Attempt) -> None:
    """Write the opening of `attempt`; its number is its place in the file."""
    make_shared_folder(paths.state)
    append_state(paths.attempts, {"event": OPENED, **_fields(attempt, _OPENING)})


def append_closed(paths: RunPaths, attempt: Attempt) -> None:
    """Write the closing of `attempt`, which carries its reason."""
    make_shared_folder(paths.state)
    append_state(paths.attempts, {"event": CLOSED, "id": attempt.id, **_fields(attempt, _CLOSING)})


def _fields(attempt: Attempt, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(attempt, name) for name in names}
