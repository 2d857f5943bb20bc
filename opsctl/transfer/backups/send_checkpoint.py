"""Sending one checkpoint to a destination: marked as being read, proven there file by file, its manifest last.

Whatever becomes of it here meanwhile, pruned, moved, saved again, what is there has its manifest only when all of it
is there. What a destination has of another save of that iteration is called none before the first file changes.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import locked, make_folder, read_text
from opsctl.core.files.trusted import opened_folder
from opsctl.core.timestamps import now
from opsctl.run.checkpoints.backups import BackedUp, What, read_backups, record
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.checkpoint_readers import reading
from opsctl.run.state.identity import read_run_id
from opsctl.transfer.backups.checkpoint_forms import TAR, TAR_INDEX, Form, check, expected, is_damaged, put
from opsctl.transfer.backups.remote_layout import (
    NOTE,
    FarCheckpoint,
    FarRun,
    folder_of,
    read_run,
    refuse_another_runs,
    size_of,
    state_of,
)
from opsctl.transfer.backups.schedule import Due
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.folder import FolderStore
from opsctl.transfer.object_store.sources import bytes_source
from opsctl.transfer.object_store.store import Store
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.checkpoint.manifest import MANIFEST, Manifest, check_checksums, decode_manifest, tag_of
from trainer.formats.checkpoint.starting import manifest_text, without_optimizer
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_file_text
from trainer.formats.tolerant import decode

#: How long another backup to the same place is waited for: it does the same.
_TURN_WAIT_S = 1.0


@dataclass(frozen=True)
class Destination:
    """A place for one run's copies, with what has to be said there."""

    paths: RunPaths
    name: str  # the run's
    to: str  # the URL, as the ledger has it
    store: Store
    flow: Flow

    def say(self, name: str, data: bytes) -> None:
        """Put a file there that is nowhere else. Raises StoreError, FileFault."""
        self.store.put_source(bytes_source(name, data), name, self.flow)


@contextlib.contextmanager
def turn(paths: RunPaths, name: str, to: str) -> Iterator[None]:
    """One backup of a run to a place at a time, over hosts. Raises OpsctlError where another one is at it."""
    make_folder(paths.output, paths.state)
    lock = paths.state / f"backup-{digest_of(to.encode())}.lock"
    with locked(paths.output, lock, _TURN_WAIT_S, f"back up {name} to {to}"):
        yield


def ledger(paths: RunPaths) -> list[BackedUp]:
    """What is on record. Raises OpsctlError where nobody can read it."""
    try:
        return read_backups(paths)
    except OSError as error:
        raise OpsctlError(f"nothing is backed up: {file_problem(error, paths.backups)}") from None


def claim(place: Destination, anew: bool = False) -> None:
    """Have the destination say whose it is. anew: it was emptied, and nobody expects what was there.

    Raises OpsctlError where it is another run's, the run's own folder, or empty though the ledger knows copies there,
    as where a disk is not mounted; StoreError.
    """
    refuse_the_runs_own_folder(place)
    run_id, there = read_run_id(place.paths) or "", read_run(place.store)
    refuse_another_runs(there, place.name, run_id, place.store.where)
    if there is not None and there.run_id and not run_id:  # as of a restored copy, which may have its name
        raise OpsctlError(
            f"{place.store.where} has the copies of the run with the id {there.run_id}, and {place.name} has no id: "
            "give each run a place of its own in [backup] to"
        )
    if there is None and not anew and any(line.to == place.to for line in ledger(place.paths)):
        raise OpsctlError(
            f"{place.store.where} had copies of {place.name} and has no {NOTE} now: is it mounted? "
            "Where it was emptied --anew begins there again"
        )
    wanted = FarRun(run=place.name, run_id=run_id)
    if there != wanted:
        place.say(NOTE, json_file_text(wanted).encode())


def refuse_the_runs_own_folder(place: Destination) -> None:
    """A copy there would be the original itself, or go with it. Raises OpsctlError."""
    if not isinstance(place.store.backend, FolderStore):
        return
    to = Path(place.store.where).resolve()
    if any(one.samefile(place.paths.output) for one in (to, *to.parents)):
        raise OpsctlError(f"{place.store.where} is in the run's own folder {place.paths.output}: give another place")


def send_checkpoint(place: Destination, due: Due, of: str, form: Form = Form.FILES) -> BackedUp:
    """Bring it there, in that form. of: checksum of the manifest that it was chosen by.

    The caller has its `turn`. Raises OpsctlError where it is not there whole afterwards, with why.
    """
    folder = place.paths.checkpoints / tag_of(due.iteration)
    try:
        with (
            reading(place.paths, due.iteration, f"backup to {place.store.where}"),
            opened_folder(place.paths.output, folder) as (held, _),
        ):
            data = _manifest_here(place.paths, due.iteration)
            if digest_of(data) != of:
                raise OpsctlError(f"{folder.name} was saved again meanwhile: the next backup sends that")
            line = _send(place, due, held, data, form)
    except CheckpointError as error:
        raise OpsctlError(f"{folder.name} is not sent: {error}") from None
    except OSError as error:
        raise OpsctlError(f"{folder.name} is not sent: {file_problem(error, folder)}") from None
    return line


def _send(place: Destination, due: Due, held: int, data: bytes, form: Form) -> BackedUp:
    whole = _parsed(data, due.iteration)
    manifest = whole if due.what is What.FULL else without_optimizer(whole)
    text = data if due.what is What.FULL else manifest_text(manifest)
    prefix, of = folder_of(due.what, due.iteration), digest_of(data)
    _make_way(place, due, prefix, manifest, text)
    note = FarCheckpoint(
        run=place.name,
        run_id=read_run_id(place.paths) or "",
        iteration=due.iteration,
        what=due.what,
        of=of,
        files=len(manifest.files),
        bytes=size_of(manifest.files),
        left_out=tuple(sorted(whole.files.keys() - manifest.files.keys())),
        form=form,
        sent_at=now().replace(microsecond=0),
        by=account_and_host(),
    )
    place.say(f"{prefix}/{NOTE}", json_file_text(note).encode())
    put(place.store, held, manifest, prefix, form, place.flow)
    if digest_of(_manifest_here(place.paths, due.iteration)) != of:
        raise OpsctlError(f"{tag_of(due.iteration)} was saved again meanwhile: the next backup sends that")
    place.say(f"{prefix}/{MANIFEST}", text)
    return BackedUp(
        to=place.to,
        what=due.what,
        iteration=due.iteration,
        of=of,
        form=form.value,
        files=note.files,
        bytes=note.bytes,
        sent_at=note.sent_at,
        by=note.by,
        verified_at=now().replace(microsecond=0),
        proof=state_of(place.store.list(prefix), manifest),
    )


def _make_way(place: Destination, due: Due, prefix: str, manifest: Manifest, text: bytes) -> None:
    """What is there in the place, and is not what is to be there, goes: its manifest first.

    Raises OpsctlError where it is another run's, or what is to take its place is damaged here.
    """
    there = place.store.list(prefix)
    note = decode(place.store.read(f"{prefix}/{NOTE}"), FarCheckpoint) if NOTE in there else None
    if note is not None and note.run:
        whose = FarRun(run=note.run, run_id=note.run_id)
        refuse_another_runs(whose, place.name, read_run_id(place.paths) or "", f"{place.store.where}/{prefix}")
    lines = _on_record(place, due)
    if MANIFEST in there and place.store.read(f"{prefix}/{MANIFEST}") != text:
        check_checksums(place.paths.checkpoints / tag_of(due.iteration), manifest)  # that one may be the better one
        if lines is None or any(one.counts for one in lines):
            gone = BackedUp(to=place.to, what=due.what, iteration=due.iteration, lost="another one takes its place")
            record(place.paths, [gone])
        damaged = [name for name in there if name not in (MANIFEST, NOTE)]
    elif MANIFEST in there or lines is None or lines:
        # Its bytes count, not what a store has noted of them when they came.
        lying = {name: file for name, file in expected(manifest.files).items() if name in there}
        damaged = list(check(place.store, prefix, Form.FILES, lying, place.flow).faults)
        if TAR_INDEX in there and is_damaged(place.store, prefix, place.flow):
            check_checksums(place.paths.checkpoints / tag_of(due.iteration), manifest)  # some of it may be whole there
            damaged += [TAR_INDEX, TAR]
    else:
        return  # what a backup that was cut off has sent: each file was proven then
    if damaged:
        place.store.remove([MANIFEST], prefix)
        place.store.remove(damaged, prefix)


def _on_record(place: Destination, due: Due) -> list[BackedUp] | None:
    """What the ledger knows of it there; None where it cannot be read."""
    try:
        return [one for one in read_backups(place.paths) if one.key == (place.to, due.iteration, due.what)]
    except OSError:
        return None


def _manifest_here(paths: RunPaths, iteration: int) -> bytes:
    """As it is under its name now. Raises OSError."""
    path = paths.checkpoints / tag_of(iteration) / MANIFEST
    text = read_text(paths.output, path)
    if text is None:
        raise FileNotFoundError(errno.ENOENT, "it was removed meanwhile", str(path))
    return text.encode()


def _parsed(data: bytes, iteration: int) -> Manifest:
    try:
        return decode_manifest(data, f"{tag_of(iteration)}/{MANIFEST}")
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None
