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
    """Who saved a checkpoint, where and when."""

    at: Moment
    user: str
    host: str
    attempt: str | None = None  # the job's id, where one runs
    revision: int | None = None  # of the run, where opsctl published one


class Change(msgspec.Struct, frozen=True):
    """One thing that was another before."""

    name: str  # an option's, or what the difference is called in a manifest
    before: Any
    now: Any


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a training: at its very beginning, from a checkpoint, or of weights that came from outside."""

    at: Moment
    user: str
    host: str
    kind: str  # "began", "resumed", "finetuned", "imported" or "converted"
    iteration: int  # the one that it began at
    loaded_from: str | None = None  # folder of the checkpoint, or what was imported
    layout: dict[str, int | str] = msgspec.field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    allowed_by: str | None = None  # the option that let another training's checkpoint through
    attempt: str | None = None
    revision: int | None = None


#: Set for the ranks by opsctl's job.
ATTEMPT_FOLDER_VARIABLE = "OPSCTL_ATTEMPT_FOLDER"
REVISION_VARIABLE = "OPSCTL_REVISION"


def saved_now(environment: Mapping[str, str] = os.environ) -> Saved:
    """A save by this process, at this moment."""
    return Saved(**_origin(environment))


def started_now(environment: Mapping[str, str] = os.environ, **of_start: Any) -> Start:
    """A start by this process, at this moment; the fields that only the caller knows by name."""
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
    """As the system knows the account, or `uid N` for one without a name."""
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


#: Beside the checkpoints: a line for each time, there before the latest changes.
ROLLBACKS = "rollbacks.jsonl"


class Rollback(msgspec.Struct, frozen=True):
    """A line."""

    to: int  # iteration
    before: int | None = msgspec.field(default=None, name="from")  # iteration; None where nobody could tell
    by: str = ""  # user@host
    at: Moment | None = None
    why: str = ""
    set_aside: int | None = None  # number of the rollback whose folder has what came after; None: that stayed


Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Progress(msgspec.Struct, kw_only=True):
    """Counted since the very first step, over all restarts."""

    iteration: Count
    consumed_train_samples: Count
    consumed_train_tokens: Count
    consumed_valid_samples: Count  # of each validation group

    @classmethod
    def none(cls) -> Progress:
        """A training's very beginning."""
        return Progress(**dict.fromkeys(Progress.__struct_fields__, 0))

    def counters(self) -> dict[str, Any]:
        """The counters by name, without what a subclass adds."""
        return {name: getattr(self, name) for name in Progress.__struct_fields__}

    def after_step(self, batch_size: int, sequence_length: int) -> None:
        """Count one training step on `batch_size` samples of `sequence_length` tokens."""
        self.iteration += 1
        self.consumed_train_samples += batch_size
        self.consumed_train_tokens += batch_size * sequence_length
