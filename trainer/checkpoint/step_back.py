"""Letting an earlier checkpoint be the latest again, because a damaged one cannot be loaded."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from trainer.agreement import from_first_rank
from trainer.checkpoint.destination import Destination, Overtaken, as_checkpoint_error
from trainer.files import be_as_open_as_its_folder, write_atomically
from trainer.formats.errors import CheckpointError
from trainer.formats.fallback import FellBack
from trainer.formats.json_text import json_line
from trainer.formats.manifest import LATEST, iteration_of
from trainer.formats.origin import saved_now
from trainer.formats.rollbacks import ROLLBACKS, Rollback


def step_back(destination: Destination, fell_back: FellBack) -> None:
    """Let the checkpoint that was fallen back to be the latest, on record, where the training saves beside it.

    Collective. Raises Refusal, and Overtaken when it is another writer's to do.
    """

    def act() -> str | None:
        with as_checkpoint_error(destination.folder), destination.shown() as lost:
            if lost is None:
                root = destination.folder.place()
                _put_on_record(root / ROLLBACKS, fell_back)
                write_atomically(root / LATEST, fell_back.instead.folder.name)
            return lost

    lost = from_first_rank(act, (CheckpointError,))
    if lost is not None:
        raise Overtaken(lost)


def _put_on_record(path: Path, fell_back: FellBack) -> None:
    who = saved_now()
    line = Rollback(
        to=fell_back.instead.manifest.iteration,
        before=iteration_of(fell_back.damaged.name),
        by=f"{who.user}@{who.host}",
        at=datetime.now().astimezone().replace(microsecond=0),
        why=fell_back.said(),
    )
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    with os.fdopen(fd, "ab") as file:
        file.write(json_line(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    be_as_open_as_its_folder(path)
