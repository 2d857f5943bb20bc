"""What a checkpoint remembers of the training that led to it: who saved it, and every start with what had changed."""

from __future__ import annotations

from typing import Any

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
