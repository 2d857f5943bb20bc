"""Letting an earlier checkpoint be the latest again: a damaged one cannot be loaded, or a spike came after it."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from trainer.checkpoint.destination import Destination, Overtaken, as_checkpoint_error
from trainer.core.files import be_as_open_as_its_folder, write_atomically
from trainer.formats.checkpoint.fallback import FellBack
from trainer.formats.checkpoint.manifest import LATEST, iteration_of, tag_of
from trainer.formats.checkpoint.origin import saved_now
from trainer.formats.checkpoint.rollbacks import ROLLBACKS, Rollback
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_line
from trainer.parallel.agreement import from_first_rank


def step_back(destination: Destination, fell_back: FellBack) -> None:
    """Let the checkpoint that was fallen back to be the latest, on record, where the training saves beside it.

    Collective. Raises Refusal, and Overtaken when it is another writer's to do.
    """
    before, to = iteration_of(fell_back.damaged.name), fell_back.instead.manifest.iteration
    go_back(destination, to, before, fell_back.said())


def go_back(destination: Destination, to: int, before: int | None, why: str) -> None:
    """Let the checkpoint at iteration `to` be the latest, on record as what came instead of `before`.

    Collective. Raises as `step_back`.
    """

    def act() -> str | None:
        with as_checkpoint_error(destination.folder), destination.shown() as lost:
            if lost is None:
                root = destination.folder.place()
                _put_on_record(root / ROLLBACKS, to, before, why)
                write_atomically(root / LATEST, tag_of(to))
            return lost

    lost = from_first_rank(act, (CheckpointError,))
    if lost is not None:
        raise Overtaken(lost)


def _put_on_record(path: Path, to: int, before: int | None, why: str) -> None:
    who = saved_now()
    line = Rollback(
        to=to,
        before=before,
        by=f"{who.user}@{who.host}",
        at=datetime.now().astimezone().replace(microsecond=0),
        why=why,
    )
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    with os.fdopen(fd, "ab") as file:
        file.write(json_line(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    be_as_open_as_its_folder(path)
