"""Letting another checkpoint be the latest, on record, while nobody trains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.account import account_and_host, account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import FULL_DISK, locked, make_folder, write_atomically
from opsctl.core.timestamps import now
from opsctl.run.checkpoints.inventory import latest_iteration
from opsctl.run.checkpoints.rollbacks import append_rollback, refuse_unfinished
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

#: How the lease calls those who change the latest by hand; both hold the run's lock as long as they have it.
_BY_HAND = ("repoint by ", "rollback by ", "restore by ")


@dataclass(frozen=True)
class Repointed:
    """What a repoint did, or with a dry run would do."""

    before: int | None  # iteration of the latest; None where nobody can tell
    to: int  # iteration
    folder: Path
    warning: str = ""

    @property
    def is_same(self) -> bool:
        """Whether the latest names it already."""
        return self.before == self.to


def repoint(paths: RunPaths, name: str, to: int | None, why: str, dry_run: bool = False) -> Repointed:
    """Make iteration `to` (None: the newest complete) the latest of run `name`, after checking its files. Raises
    OpsctlError while a job trains, and if it is incomplete or cannot be written.
    """
    if dry_run:
        found = _chosen(paths, to)
        refuse_beside_a_training(paths, name)
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
        said = f"{where}: {error.strerror or error}; {way_in(paths.output)}"
        raise OpsctlError(f"cannot repoint {name}: {said}") from None
    except OSError as error:
        what = FULL_DISK.get(error.errno or 0) or error.strerror or str(error)
        where = error.filename or paths.checkpoints
        raise OpsctlError(f"cannot repoint {name}: {where}: {what}; the latest is as it was") from None


def _chosen(paths: RunPaths, to: int | None) -> Repointed:
    root = paths.checkpoints
    try:
        folder = _newest(root) if to is None else complete_checkpoint(root, to)
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None
    iteration = iteration_of(folder.name)
    assert iteration is not None, "it is called like a checkpoint"
    return Repointed(latest_iteration(root), iteration, folder)


def _newest(root: Path) -> Path:
    found = newest_complete(root)
    if found is None:
        what = "no checkpoint is complete" if checkpoint_folders(root) else "there are no checkpoints"
        raise OpsctlError(f"{root}: {what}: opsctl checkpoints list shows what there is")
    return found.folder


def complete_checkpoint(root: Path, iteration: int) -> Path:
    """The folder of that checkpoint. Raises OpsctlError where there is none, or it is not complete."""
    folder = root / tag_of(iteration)
    if folder not in checkpoint_folders(root):
        raise OpsctlError(f"{root} has no {folder.name}: opsctl checkpoints list shows what there is")
    fault = fault_of(folder)
    if fault is not None:
        raise OpsctlError(f"{folder.name} is not complete: {fault}; opsctl checkpoints list shows which are")
    return folder


def _write(paths: RunPaths, name: str, found: Repointed, why: str) -> None:
    with sole_writer(paths, name, "repoint"):
        rollback = Rollback(found.to, found.before, account_and_host(), now().replace(microsecond=0), why)
        append_rollback(paths, rollback)
        write_atomically(paths.output, paths.checkpoints / LATEST, found.folder.name)


@contextlib.contextmanager
def sole_writer(paths: RunPaths, name: str, what: str) -> Iterator[None]:
    """Hold the lease for `what` while the caller has the run's lock. Raises OpsctlError while a job trains."""
    silent = refuse_beside_a_training(paths, name, is_locked=True)

    def why_over(held: lease.Held) -> str | None:
        return "its heartbeat stood still, or its process is gone" if held.holder.number == silent else None

    own = lease.take(paths, f"{what} by {account_and_host()}", None, account_name(), why_over)
    if isinstance(own, lease.Held):
        raise OpsctlError(f"cannot {what} {name}: {own.holder.named()} has just begun to write there")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # silence ends it as well
            own.end(what)


def refuse_beside_a_training(
    paths: RunPaths, name: str, is_locked: bool = False, what: str = "change the latest"
) -> int | None:
    """Return the number of a held lease that is over: silent or, with the run's lock, of an ended command. Raises
    OpsctlError for a live one.
    """
    try:
        seen = lease.look(paths)
    except OSError as error:
        where = error.filename or paths.lease
        raise OpsctlError(f"who trains {name} cannot be seen: {where}: {error.strerror}; mend that first") from None
    is_left_behind = is_locked and seen.holder is not None and seen.holder.attempt.startswith(_BY_HAND)
    if seen.holder is not None and not seen.is_silent and not is_left_behind:
        raise OpsctlError(
            f"cannot {what} while {name} is being trained by {seen.told()}: opsctl kill-switch trigger "
            f"ends that; a job that is gone must have been silent for {SILENT_S:.0f} s"
        )
    return seen.holder.number if seen.holder else None
