"""The history of a run's checkpoints: starts, saves, rollbacks and progress."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from trainer.formats.json_text import Moment


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a checkpoint: attempt, user, host and time."""

    at: Moment
    user: str
    host: str
    attempt: str | None = None  # the job's id, in a job
    revision: int | None = None  # of the run, if opsctl published one
    from_memory: bool = False  # a restart published it, from the host memory of this attempt's ranks


class Change(msgspec.Struct, frozen=True):
    """One value that changed, with its earlier and its new value."""

    name: str  # an option's name, or the name of the difference in a manifest
    before: Any
    now: Any


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a training: from nothing, from a checkpoint, or from imported weights."""

    at: Moment
    user: str
    host: str
    kind: str  # "began", "resumed", "finetuned", "imported" or "converted"
    iteration: int  # the first iteration
    loaded_from: str | None = None  # the checkpoint's folder, or the imported model
    layout: dict[str, int | str] = msgspec.field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    allowed_by: str | None = None  # the option that allowed another training's checkpoint
    from_memory: bool = False  # the checkpoint came from host memory
    attempt: str | None = None
    revision: int | None = None


#: Set for the ranks by opsctl's job.
ATTEMPT_FOLDER_VARIABLE = "OPSCTL_ATTEMPT_FOLDER"
REVISION_VARIABLE = "OPSCTL_REVISION"


def saved_now(environment: Mapping[str, str] = os.environ) -> Saved:
    """Return the record of a save by this process, now."""
    return Saved(**_origin(environment))


def started_now(environment: Mapping[str, str] = os.environ, **of_start: Any) -> Start:
    """Return the record of a start by this process, now. The caller passes the other fields by name."""
    return Start(**_origin(environment), **of_start)


def _origin(environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        "at": datetime.now().astimezone().replace(microsecond=0),
        "user": _user(),
        "host": socket.gethostname(),
        "attempt": _job(environment),
        "revision": _revision(environment),
    }


def _user() -> str:
    """Return the account's name, or `uid N` if it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def _job(environment: Mapping[str, str]) -> str | None:
    folder = environment.get(ATTEMPT_FOLDER_VARIABLE)
    return (Path(folder).name if folder else environment.get("SLURM_JOB_ID")) or None


def _revision(environment: Mapping[str, str]) -> int | None:
    number = environment.get(REVISION_VARIABLE, "")
    return int(number) if number.isascii() and number.isdigit() else None


#: The rollback record in the checkpoints' folder. Each line is written before `latest` changes.
ROLLBACKS = "rollbacks.jsonl"


class Rollback(msgspec.Struct, frozen=True):
    """One line of the rollback record."""

    to: int  # iteration
    before: int | None = msgspec.field(default=None, name="from")  # iteration; None if unknown
    by: str = ""  # user@host
    at: Moment | None = None
    why: str = ""
    set_aside: int | None = None  # number of the rollback whose folder has the later checkpoints; None: they stayed


Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Progress(msgspec.Struct, kw_only=True):
    """Progress counters over all restarts of a training."""

    iteration: Count
    consumed_train_samples: Count
    consumed_train_tokens: Count
    consumed_valid_samples: Count  # of each validation group

    @classmethod
    def none(cls) -> Progress:
        """Return the progress of a training that has not begun."""
        return Progress(**dict.fromkeys(Progress.__struct_fields__, 0))

    def counters(self) -> dict[str, Any]:
        """Return the counters by name, without fields of subclasses."""
        return {name: getattr(self, name) for name in Progress.__struct_fields__}

    def after_step(self, batch_size: int, sequence_length: int) -> None:
        """Count one step on `batch_size` samples of `sequence_length` tokens."""
        self.iteration += 1
        self.consumed_train_samples += batch_size
        self.consumed_train_tokens += batch_size * sequence_length
