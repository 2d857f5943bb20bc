"""Attempts: what ran and how it ended. Events in `.opsctl/attempts.jsonl`, folded by a pure function into values.

An event is one line, `{"event": "opened"|"closed", "id": ..., ...}`. Lines that are half written or of an unknown kind
are passed over, and so are fields of the wrong type: reading never fails for what somebody else wrote. Times are
ISO 8601 with zone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any

from opsctl.records.state_files import append_line, make_shared_folder
from opsctl.runs.paths import RunPaths

#: Attempts in a row without a new checkpoint after which a chain stops.
BRAKE_ATTEMPTS = 3
#: Ways to leave that say nothing about the training's health, unless a checkpoint came of them.
_NEUTRAL_REASONS = frozenset({"kill-switch", "finished", "brake"})

#: The fields each event carries beside its kind and id.
_OPENING = (
    "array_job_id",
    "array_task",
    "chain_submitted_at",
    "revision",
    "user",
    "nodes",
    "opened_at",
    "kill_switch_path",
    "iteration_at_start",
)
_CLOSING = (
    "closed_at",
    "closed_by",
    "reason",
    "exit_code",
    "signal",
    "iteration_at_end",
    "checkpoint_at_end",
    "first_failure",
    "other_failures",
    "error_files",
    "lost_nodes",
    "ranks",
    "note",
)


@dataclass(frozen=True)
class Failure:
    """One rank's failure, as the launcher on its node saw it."""

    rank: int
    node: str
    local_rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None  # the signal's number when one ended it
    failed_at: datetime | None = None
    message: str = ""
    error_file: str = ""  # kept copy of the elastic error file


@dataclass(frozen=True)
class RankPlace:
    """Where a rank ran."""

    rank: int
    node: str
    gpu: str = ""  # as the launcher names it; empty without one


@dataclass(frozen=True)
class Attempt:
    """One array task's try at the training, from opening to closing. `reason` is None while it is open."""

    number: int  # 1 for the run's first
    id: str  # unique also where job ids start over
    job_id: int
    array_job_id: int | None = None
    array_task: str = ""
    chain_submitted_at: datetime | None = None
    revision: str = ""
    user: str = ""
    nodes: tuple[str, ...] = ()
    opened_at: datetime | None = None
    kill_switch_path: str = ""  # where its trainer looks
    iteration_at_start: int | None = None  # of the last whole checkpoint; None: none yet
    closed_at: datetime | None = None
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
        return {key: _plain(value) for key, value in asdict(self).items()}


def fold(events: Iterable[Mapping[str, Any]]) -> list[Attempt]:
    """Attempts in the order they were opened.

    Of several closings the job's own counts, else the first; a closing without its opening is passed over.
    """
    attempts: dict[str, Attempt] = {}
    for event in events:
        key = event.get("id")
        if not isinstance(key, str):
            continue
        if event.get("event") == "opened" and key not in attempts and isinstance(event.get("job_id"), int):
            attempts[key] = replace(
                Attempt(number=len(attempts) + 1, id=key, job_id=event["job_id"]), **_known(event, _OPENING)
            )
        elif event.get("event") == "closed" and key in attempts and isinstance(event.get("reason"), str):
            known = attempts[key]
            if known.is_open or (event.get("closed_by") == "job" and known.closed_by != "job"):
                attempts[key] = replace(known, **_known(event, _CLOSING))
    return list(attempts.values())


def read(paths: RunPaths) -> list[Attempt]:
    """The run's attempts so far; empty when there is no such file."""
    try:
        text = paths.attempts.read_bytes()
    except FileNotFoundError:
        return []
    return fold(_events(text))


def append_opened(paths: RunPaths, attempt: Attempt) -> None:
    """Write the opening of `attempt`; its number is its place in the file."""
    _append(paths, "opened", attempt, ("job_id", *_OPENING))


def append_closed(paths: RunPaths, attempt: Attempt) -> None:
    """Write the closing of `attempt`, which carries its reason."""
    _append(paths, "closed", attempt, _CLOSING)


def without_progress(attempts: Iterable[Attempt], since: datetime) -> int:
    """How many attempts in a row, up to the last, ended after `since` without a new checkpoint.

    Attempts that left through the kill switch at their start, or found the training finished, neither count nor break
    the row.
    """
    row = 0
    for attempt in attempts:
        if attempt.closed_at is None or attempt.closed_at <= since:
            continue
        if attempt.made_checkpoint:
            row = 0
        elif attempt.reason not in _NEUTRAL_REASONS:
            row += 1
    return row


def brake_trips(attempts: Iterable[Attempt], since: datetime) -> bool:
    """Whether a chain submitted at `since` must stop: three attempts in a row without a new checkpoint."""
    return without_progress(attempts, since) >= BRAKE_ATTEMPTS


def _append(paths: RunPaths, event: str, attempt: Attempt, names: tuple[str, ...]) -> None:
    make_shared_folder(paths.state)
    values = {name: _plain(getattr(attempt, name)) for name in names}
    append_line(paths.attempts, json.dumps({"event": event, "id": attempt.id, **values}))


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Failure | RankPlace):
        return {key: _plain(item) for key, item in asdict(value).items()}
    return value


def _events(raw: bytes) -> Iterable[dict[str, Any]]:
    for line in raw.split(b"\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


_TIMES = frozenset({"chain_submitted_at", "opened_at", "closed_at", "failed_at"})
_NUMBERS = frozenset(
    {"job_id", "array_job_id", "iteration_at_start", "exit_code", "signal", "iteration_at_end", "checkpoint_at_end"}
) | {"rank", "local_rank"}


def _known(event: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The fields of an event that an Attempt has and whose values are of the right type."""
    values: dict[str, Any] = {}
    for name in names:
        if name not in event:
            continue
        value = event[name]
        if name == "ranks":
            values["ranks"] = tuple(filter(None, (rank_place(item) for item in _items(value))))
        elif name == "other_failures":
            values["other_failures"] = tuple(filter(None, (failure(item) for item in _items(value))))
        elif name == "first_failure":
            values["first_failure"] = failure(value)
        elif name in {"nodes", "error_files", "lost_nodes"}:
            values[name] = tuple(str(item) for item in _items(value))
        else:
            ok, read_value = _scalar(name, value)
            if ok:
                values[name] = read_value
    return values


def failure(value: Any) -> Failure | None:
    """A launcher's or an event's failure record, None when it names no rank."""
    if not isinstance(value, dict) or not isinstance(value.get("rank"), int):
        return None
    return Failure(**_scalars(Failure, value))


def rank_place(value: Any) -> RankPlace | None:
    """A launcher's or an event's rank record, None when it names no rank."""
    if not isinstance(value, dict) or not isinstance(value.get("rank"), int):
        return None
    gpu = value.get("gpu")
    return RankPlace(rank=value["rank"], node=str(value.get("node") or ""), gpu="" if gpu is None else str(gpu))


def _scalars(kind: type, value: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"node": ""}
    for field in fields(kind):
        if field.name in value:
            ok, read_value = _scalar(field.name, value[field.name])
            if ok:
                found[field.name] = read_value
    return found


def _scalar(name: str, value: Any) -> tuple[bool, Any]:
    """(whether `value` is of the type that field `name` has, the value)."""
    if name in _TIMES:
        return _time(value)
    if name in _NUMBERS:
        return value is None or (isinstance(value, int) and not isinstance(value, bool)), value
    if name == "reason":
        return isinstance(value, str), value
    return value is not None and isinstance(value, str), value


def _time(value: Any) -> tuple[bool, datetime | None]:
    if value is None:
        return True, None
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return True, datetime.fromtimestamp(value).astimezone()
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError, OverflowError, OSError):
        return False, None
    return True, found if found.tzinfo else found.astimezone()


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
