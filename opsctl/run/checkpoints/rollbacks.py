"""The records of rollbacks, repoints and prunes, and the change of the latest checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opsctl.core.account import account_and_host, account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import (
    FULL_DISK,
    append_state,
    locked,
    make_folder,
    read_lines,
    read_whole,
    write_atomically,
    write_state,
)
from opsctl.core.files.trusted import listed_within, opened_folder
from opsctl.core.timestamps import now
from opsctl.run.checkpoints.inventory import latest_iteration
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import lease
from opsctl.run.state.group_folder import LOCK_WAIT_S, way_in
from opsctl.run.state.identity import settle_identity
from trainer.formats.attempt.lease import SILENT_S
from trainer.formats.checkpoint.history import Rollback
from trainer.formats.checkpoint.manifest import (
    LATEST,
    checkpoint_folders,
    fault_of,
    iteration_of,
    newest_complete,
    tag_of,
)
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import Moment


def append_rollback(paths: RunPaths, rollback: Rollback) -> None:
    """Append it to the record. Raises OSError."""
    append_state(paths.output, paths.rollbacks, rollback)


def read_rollbacks(paths: RunPaths) -> list[Rollback]:
    """Return all records, oldest first. Raises OSError if they cannot be read."""
    return read_lines(paths.output, paths.rollbacks, Rollback)


BEGUN, DONE, UNDOING, UNDONE = "begun", "done", "undoing", "undone"
_RECORD = "rollback.json"


class MovedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint later than the target of the rollback."""

    iteration: int
    mark: str  # of its folder (`inventory.mark_of`), to exclude another one of that name


class MovedEvents(msgspec.Struct, frozen=True):
    """An event file of TensorBoard with points after the target."""

    name: str  # in the folder of the curves
    is_cut: bool  # points before the target stay in its place, in a new file


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """One rollback. It is recorded before anything moves, so that another command can finish it."""

    schema_version: int = 1
    number: int
    state: str  # begun, done, undoing or undone
    to: int  # iteration
    before: int | None = msgspec.field(default=None, name="from")  # iteration; None if unknown
    by: str = ""  # user@host
    at: Moment | None = None
    why: str = ""
    checkpoints: tuple[MovedCheckpoint, ...] = ()
    events: tuple[MovedEvents, ...] = ()

    @property
    def is_unfinished(self) -> bool:
        """Return True if it was interrupted."""
        return self.state in (BEGUN, UNDOING)


def refuse_unfinished(paths: RunPaths) -> None:
    """Raise OpsctlError after an interrupted rollback: it is unclear which files belong to the training."""
    unfinished = next((one for one in read_set_aside(paths) if one.is_unfinished), None)
    if unfinished is not None:
        raise OpsctlError(
            f"a rollback to iteration {unfinished.to} by {unfinished.by} was interrupted. To finish it: opsctl "
            f"checkpoints rollback --to {unfinished.to}"
        )


def folder_of(paths: RunPaths, number: int) -> Path:
    """Return the folder with the files that the rollback set aside."""
    return paths.set_aside / f"{number:04d}"


def read_set_aside(paths: RunPaths) -> list[SetAside]:
    """Return every recorded rollback, oldest first. Raises OSError; OpsctlError for an unreadable record."""
    found = (read_whole(paths.output, folder / _RECORD, SetAside, "read it") for _, folder in numbered_folders(paths))
    return [one for one in found if one is not None]


def numbered_folders(paths: RunPaths) -> list[tuple[int, Path]]:
    """Return every rollback's folder with its number, in order, even without a record."""
    try:
        with opened_folder(paths.output, paths.set_aside) as (folder, _):
            names = listed_within(folder)
    except FileNotFoundError:
        return []
    return [(int(name), paths.set_aside / name) for name in names if name.isascii() and name.isdigit()]


def write_set_aside(paths: RunPaths, one: SetAside) -> None:
    """Replace the record atomically. Raises OSError."""
    write_state(paths.output, folder_of(paths, one.number) / _RECORD, one)


class Pruned(msgspec.Struct, frozen=True):
    """A line of `checkpoints/prunes.jsonl`, written before the checkpoint is deleted, unless the disk is full."""

    iteration: int
    bytes: int = 0
    by: str = ""  # user@host
    at: Moment | None = None


def append_prune(paths: RunPaths, pruned: Pruned) -> None:
    """Append it to the record. Raises OSError."""
    append_state(paths.output, paths.prunes, pruned)


def read_prunes(paths: RunPaths) -> list[Pruned]:
    """Return all records, oldest first. Raises OSError if they cannot be read."""
    return read_lines(paths.output, paths.prunes, Pruned)


#: Lease holders that change the latest checkpoint by hand; both hold the run's lock at the same time.
_BY_HAND = ("repoint by ", "rollback by ", "restore by ")


@dataclass(frozen=True)
class Repointed:
    """The result of a repoint, or of its dry run."""

    before: int | None  # iteration of the latest; None if unknown
    to: int  # iteration
    folder: Path
    warning: str = ""

    @property
    def is_same(self) -> bool:
        """Return True if the latest already names it."""
        return self.before == self.to


def repoint(paths: RunPaths, name: str, to: int | None, why: str, dry_run: bool = False) -> Repointed:
    """Make iteration `to` (None: the newest complete) the latest of run `name`, after checking its files. Raises
    OpsctlError while a job trains, and if it is incomplete or cannot be written.
    """
    if dry_run:
        found = _chosen(paths, to)
        refuse_during_training(paths, name)
        return found
    try:
        make_folder(paths.output, paths.state)
        with locked(paths.output, paths.lock, LOCK_WAIT_S, f"repoint {name}"):
            warning = settle_identity(paths)
            refuse_unfinished(paths)
            found = _chosen(paths, to)
            if not found.is_same:
                _write(paths, name, found, why)
            return Repointed(found.before, found.to, found.folder, warning)
    except PermissionError as error:
        where = error.filename or paths.checkpoints
        text = f"{where}: {error.strerror or error}; {way_in(paths.output)}"
        raise OpsctlError(f"cannot repoint {name}: {text}") from None
    except OSError as error:
        what = FULL_DISK.get(error.errno or 0) or error.strerror or str(error)
        where = error.filename or paths.checkpoints
        raise OpsctlError(f"cannot repoint {name}: {where}: {what}. The latest is unchanged") from None


def _chosen(paths: RunPaths, to: int | None) -> Repointed:
    root = paths.checkpoints
    try:
        folder = _newest(root) if to is None else complete_checkpoint(root, to)
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None
    iteration = iteration_of(folder.name)
    assert iteration is not None, "it has a checkpoint's name"
    return Repointed(latest_iteration(root), iteration, folder)


def _newest(root: Path) -> Path:
    found = newest_complete(root)
    if found is None:
        what = "no checkpoint is complete" if checkpoint_folders(root) else "there are no checkpoints"
        raise OpsctlError(f"{root}: {what}. To see all: opsctl checkpoints list")
    return found.folder


def complete_checkpoint(root: Path, iteration: int) -> Path:
    """Return the folder of that checkpoint. Raises OpsctlError if it is missing or incomplete."""
    folder = root / tag_of(iteration)
    if folder not in checkpoint_folders(root):
        raise OpsctlError(f"{root} has no {folder.name}. To see all: opsctl checkpoints list")
    fault = fault_of(folder)
    if fault is not None:
        raise OpsctlError(f"{folder.name} is not complete: {fault}. To see complete ones: opsctl checkpoints list")
    return folder


def _write(paths: RunPaths, name: str, found: Repointed, why: str) -> None:
    with sole_writer(paths, name, "repoint"):
        rollback = Rollback(found.to, found.before, account_and_host(), now().replace(microsecond=0), why)
        append_rollback(paths, rollback)
        write_atomically(paths.output, paths.checkpoints / LATEST, found.folder.name)


@contextlib.contextmanager
def sole_writer(paths: RunPaths, name: str, what: str) -> Iterator[None]:
    """Hold the lease for `what` while the caller has the run's lock. Raises OpsctlError while a job trains."""
    silent = refuse_during_training(paths, name, is_locked=True)

    def why_over(held: lease.Held) -> str | None:
        return "its heartbeat stopped, or its process is gone" if held.holder.number == silent else None

    own = lease.take(paths, f"{what} by {account_and_host()}", None, account_name(), why_over)
    if isinstance(own, lease.Held):
        raise OpsctlError(f"cannot {what} {name}: {own.holder.named()} has just started to write there")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the lease also expires without heartbeats
            own.end(what)


def refuse_during_training(
    paths: RunPaths, name: str, is_locked: bool = False, what: str = "change the latest"
) -> int | None:
    """Return the number of a held lease that has expired: silent or, with the run's lock, of an ended command. Raises
    OpsctlError for a live one.
    """
    try:
        seen = lease.look(paths)
    except OSError as error:
        where = error.filename or paths.lease
        raise OpsctlError(f"cannot find the jobs that train {name}: {where}: {error.strerror}. Fix it first") from None
    is_left_behind = is_locked and seen.holder is not None and seen.holder.attempt.startswith(_BY_HAND)
    if seen.holder is not None and not seen.is_silent and not is_left_behind:
        raise OpsctlError(
            f"cannot {what} while {name} is being trained by {seen.told()}. To stop it: opsctl kill-switch trigger. "
            f"A dead job's lease ends after {SILENT_S:.0f} s of silence"
        )
    return seen.holder.number if seen.holder else None
