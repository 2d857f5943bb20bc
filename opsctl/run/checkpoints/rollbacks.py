"""The record of who let which checkpoint be the latest."""

from __future__ import annotations

from pathlib import Path

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import append_state, read_lines, read_whole, write_state
from opsctl.core.files.trusted import listed_within, opened_folder
from opsctl.run.config.paths import RunPaths
from trainer.formats.checkpoint.history import Rollback
from trainer.formats.json_text import Moment


def append_rollback(paths: RunPaths, rollback: Rollback) -> None:
    """Put it on record. Raises OSError."""
    append_state(paths.output, paths.rollbacks, rollback)


def read_rollbacks(paths: RunPaths) -> list[Rollback]:
    """All on record, oldest first. Raises OSError where they cannot be read."""
    return read_lines(paths.output, paths.rollbacks, Rollback)


BEGUN, DONE, UNDOING, UNDONE = "begun", "done", "undoing", "undone"
_RECORD = "rollback.json"


class MovedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint later than what the rollback goes back to."""

    iteration: int
    mark: str  # of its folder (`inventory.mark_of`): another one of that name is not meant


class MovedEvents(msgspec.Struct, frozen=True):
    """An event file of TensorBoard's with points beyond."""

    name: str  # in the folder of the curves
    is_cut: bool  # what it has from before stays in its place, written anew


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """One rollback. It is on the disk before anything moves, so that whoever comes next can finish it."""

    schema_version: int = 1
    number: int
    state: str  # begun, done, undoing or undone
    to: int  # iteration
    before: int | None = msgspec.field(default=None, name="from")  # iteration; None where nobody could tell
    by: str = ""  # user@host
    at: Moment | None = None
    why: str = ""
    checkpoints: tuple[MovedCheckpoint, ...] = ()
    events: tuple[MovedEvents, ...] = ()

    @property
    def is_unfinished(self) -> bool:
        """Whether somebody was cut off in the middle of it."""
        return self.state in (BEGUN, UNDOING)


def refuse_unfinished(paths: RunPaths) -> None:
    """Raise OpsctlError where a rollback was cut off: what belongs to the training is not settled."""
    unfinished = next((one for one in read_set_aside(paths) if one.is_unfinished), None)
    if unfinished is not None:
        raise OpsctlError(
            f"a rollback to iteration {unfinished.to} by {unfinished.by} was cut off: opsctl checkpoints rollback "
            f"--to {unfinished.to} finishes it"
        )


def folder_of(paths: RunPaths, number: int) -> Path:
    """Where that rollback has what it set aside."""
    return paths.set_aside / f"{number:04d}"


def read_set_aside(paths: RunPaths) -> list[SetAside]:
    """Every rollback with a record, oldest first. Raises OSError, and OpsctlError for a record that cannot be read."""
    found = (
        read_whole(paths.output, folder / _RECORD, SetAside, "look at it") for _, folder in numbered_folders(paths)
    )
    return [one for one in found if one is not None]


def numbered_folders(paths: RunPaths) -> list[tuple[int, Path]]:
    """Every rollback's folder with its number, in order, also of one that was cut off before its record."""
    try:
        with opened_folder(paths.output, paths.set_aside) as (folder, _):
            names = listed_within(folder)
    except FileNotFoundError:
        return []
    return [(int(name), paths.set_aside / name) for name in names if name.isascii() and name.isdigit()]


def write_set_aside(paths: RunPaths, one: SetAside) -> None:
    """Replace the record as a whole. Raises OSError."""
    write_state(paths.output, folder_of(paths, one.number) / _RECORD, one)


class Pruned(msgspec.Struct, frozen=True):
    """A line of `checkpoints/prunes.jsonl`; it is there before the checkpoint goes, unless the disk was full."""

    iteration: int
    bytes: int = 0
    by: str = ""  # user@host
    at: Moment | None = None


def append_prune(paths: RunPaths, pruned: Pruned) -> None:
    """Put it on record. Raises OSError."""
    append_state(paths.output, paths.prunes, pruned)


def read_prunes(paths: RunPaths) -> list[Pruned]:
    """All on record, oldest first. Raises OSError where they cannot be read."""
    return read_lines(paths.output, paths.prunes, Pruned)
