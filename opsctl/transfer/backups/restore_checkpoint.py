"""Restore a checkpoint: fetched next to its place, verified file by file, and renamed when all of it is there.

A restore that was killed continues: fetched files stay under a name that no reader loads. After a complete one the same
command finds the checkpoint complete and changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import fsync_folder, locked, make_folder, remove, write_atomically
from opsctl.core.files.trusted import opened_folder
from opsctl.run.checkpoints.backups import What, digest_here
from opsctl.run.checkpoints.inventory import latest_iteration
from opsctl.run.checkpoints.rollbacks import refuse_during_training, sole_writer
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.group_folder import LOCK_WAIT_S
from opsctl.run.state.identity import read_run_id
from opsctl.transfer.backups.data_copies import refuse_without_room
from opsctl.transfer.backups.destination import read_run, refuse_another_runs
from opsctl.transfer.backups.json_output import RestoredCheckpoint
from opsctl.transfer.backups.remote_layout import Found, find, get_files
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import StoreError
from opsctl.transfer.sending.plan import size_of
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.checkpoint.manifest import (
    LATEST,
    MANIFEST,
    WAY_OUT,
    Manifest,
    check_checksums,
    check_files,
    checkpoint_folders,
    tag_of,
)
from trainer.formats.checkpoint.starting import manifest_text, without_optimizer
from trainer.formats.errors import CheckpointError

#: What is being fetched is called so; a save clears away only what begins with `.tmp-`.
COMING = ".restoring-"


@dataclass(frozen=True)
class Chosen:
    """A backup to be restored, and its manifest as it is to be here."""

    found: Found
    manifest: Manifest
    text: bytes  # of the manifest

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return size_of(self.manifest.files)


def choose(store: Store, iteration: int, weights_only: bool) -> Chosen:
    """Return the backup of that checkpoint. Raises OpsctlError where there is none that fits, StoreError."""
    found: dict[What, Found] = {}
    why: dict[What, str] = {}
    for what in (What.FULL, What.WEIGHTS):
        try:
            found[what] = find(store, iteration, what)
        except StoreError:
            raise
        except OpsctlError as error:
            why[what] = str(error)
    wanted = What.WEIGHTS if weights_only else What.FULL
    if wanted in found:
        return Chosen(found[wanted], found[wanted].manifest, found[wanted].manifest_bytes)
    if weights_only and What.FULL in found:
        manifest = without_optimizer(found[What.FULL].manifest)
        return Chosen(found[What.FULL], manifest, manifest_text(manifest))
    tag = tag_of(iteration)
    if What.WEIGHTS in found:
        raise OpsctlError(f"{tag} is in {store.where} without optimizer states only: --weights-only brings that")
    both = f"{why[What.FULL]}; without optimizer states: {why[What.WEIGHTS]}"
    raise OpsctlError(f"{store.where} has no {tag}: {both}")


def restore_to_run(store: Store, chosen: Chosen, paths: RunPaths, name: str, flow: Flow) -> RestoredCheckpoint:
    """Restore the checkpoint into a run's checkpoints; if there are none, it becomes the latest.

    Raises OpsctlError if it belongs to another run, while a job trains there, if the name exists, without space on the
    disk, and for a file that differs from the original.
    """
    tag = tag_of(chosen.manifest.iteration)
    remedy = f"--into FOLDER brings {tag} somewhere else"
    refuse_another_runs(read_run(store), name, read_run_id(paths) or "", store.where, remedy)
    if _is_there(chosen, paths.checkpoints / tag):
        is_latest = latest_iteration(paths.checkpoints) == chosen.manifest.iteration
        return _restored(chosen, paths.checkpoints / tag, is_latest, was_there=True)
    make_folder(paths.output, paths.state)
    with locked(paths.output, paths.lock, LOCK_WAIT_S, f"restore {tag}"):
        refuse_during_training(paths, name, is_locked=True, what=f"restore {tag}")
    make_folder(paths.output, paths.checkpoints)
    with _coming(paths.output, paths.checkpoints, tag) as beside:
        _fetch(store, chosen, paths.output, beside, flow)
        with locked(paths.output, paths.lock, LOCK_WAIT_S, f"restore {tag}"), sole_writer(paths, name, "restore"):
            is_first = not checkpoint_folders(paths.checkpoints) and not os.path.lexists(paths.checkpoints / LATEST)
            _put_in_place(paths.output, paths.checkpoints, tag)
            if is_first:
                write_atomically(paths.output, paths.checkpoints / LATEST, tag)
    return _restored(chosen, paths.checkpoints / tag, is_first)


def restore_to_folder(store: Store, chosen: Chosen, folder: Path, flow: Flow) -> RestoredCheckpoint:
    """Restore it to `folder`/global_stepN, whatever its run. Raises as `restore_to_run`."""
    tag = tag_of(chosen.manifest.iteration)
    if _is_there(chosen, folder / tag):
        return _restored(chosen, folder / tag, False, was_there=True)
    folder.mkdir(parents=True, exist_ok=True)
    with _coming(folder, folder, tag) as beside:
        _fetch(store, chosen, folder, beside, flow)
        _put_in_place(folder, folder, tag)
    return _restored(chosen, folder / tag, False)


@contextlib.contextmanager
def _coming(root: Path, folder: Path, tag: str) -> Iterator[Path]:
    """Yield the folder for what is fetched, to one restore at a time. Raises OpsctlError if the place is taken."""
    _refuse_what_is_there(folder / tag)
    beside = folder / f"{COMING}{tag}"
    make_folder(root, beside)
    with alone_in(beside, f"another restore of {tag} is under way in {folder}"):
        yield beside


@contextlib.contextmanager
def alone_in(folder: Path, refusal: str) -> Iterator[None]:
    """Have a folder alone, as far as its file system has locks of folders. Raises OpsctlError with `refusal`."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OpsctlError(refusal) from None
        except OSError:
            pass  # this file system has no such locks
        yield
    finally:
        os.close(fd)


def _is_there(chosen: Chosen, place: Path) -> bool:
    """Return whether this very save is in its place, every byte as it was sent, as after a finished restore.

    Raises OpsctlError where its files are damaged.
    """
    if digest_here(place) != digest_of(chosen.text):
        return False
    try:
        check_files(place, chosen.manifest)
        check_checksums(place, chosen.manifest)
    except (CheckpointError, OSError) as error:
        _refuse_what_is_there(place, str(error).partition(WAY_OUT)[0])
    return True


def _refuse_what_is_there(place: Path, why: str = "") -> None:
    if os.path.lexists(place):
        damage = f" ({why})" if why else ""
        raise OpsctlError(f"{place} is there{damage}, and nothing is overwritten: move it away first")


def _fetch(store: Store, chosen: Chosen, root: Path, beside: Path, flow: Flow) -> None:
    there = {path.name: path.stat().st_size for path in beside.iterdir()}
    for name in there.keys() - chosen.manifest.files.keys():
        remove(root, beside / name)  # of a restore of another save, or of a name that has one now
    refuse_without_room(beside, chosen.bytes - sum(there.get(name, 0) for name in chosen.manifest.files))
    get_files(store, chosen.found, chosen.manifest.files, beside, flow)
    write_atomically(root, beside / MANIFEST, chosen.text)


def _put_in_place(root: Path, folder: Path, tag: str) -> None:
    _refuse_what_is_there(folder / tag)
    with opened_folder(root, folder) as (fd, _):
        os.rename(f"{COMING}{tag}", tag, src_dir_fd=fd, dst_dir_fd=fd)
    fsync_folder(root, folder)


def _restored(chosen: Chosen, folder: Path, is_latest: bool, was_there: bool = False) -> RestoredCheckpoint:
    return RestoredCheckpoint(
        folder=str(folder),
        iteration=chosen.manifest.iteration,
        files=len(chosen.manifest.files),
        bytes=chosen.bytes,
        whole=True,
        latest=is_latest,
        without_optimizer=chosen.text != chosen.found.manifest_bytes or chosen.found.note.what is What.WEIGHTS,
        was_there=was_there,
    )
