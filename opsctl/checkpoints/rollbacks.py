"""Who let which checkpoint be the latest by hand: without such a word the latest never goes back."""

from __future__ import annotations

import msgspec

from opsctl.records.state_files import append_state, read_lines
from opsctl.runs.paths import RunPaths
from trainer.formats.json_text import Moment


class Rollback(msgspec.Struct, frozen=True):
    """A line of `checkpoints/rollbacks.jsonl`; it is there before the latest changes."""

    to: int  # iteration
    before: int | None = msgspec.field(default=None, name="from")  # iteration; None where nobody could tell
    by: str = ""  # user@host
    at: Moment | None = None
    why: str = ""


def append_rollback(paths: RunPaths, rollback: Rollback) -> None:
    """Put it on record. Raises OSError."""
    append_state(paths.output, paths.rollbacks, rollback)


def read_rollbacks(paths: RunPaths) -> list[Rollback]:
    """All on record, oldest first. Raises OSError where they cannot be read."""
    return read_lines(paths.output, paths.rollbacks, Rollback)
