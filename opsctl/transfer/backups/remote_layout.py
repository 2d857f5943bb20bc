"""The layout of a destination, which is readable without anything else.

    backup.json                          which run this is
    checkpoints/global_stepN/...         a whole checkpoint; manifest.json comes last
    weights/global_stepN/...             one without optimizer states; its manifest says so
    rest/NUMBER.json, rest/NUMBER/...    an index of logs, curves and records, and the files that were new then
    data/...                             data sets; see `data_copies`

Nothing is a backup until its manifest is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.run.checkpoints.backups import BackedUp, What
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.folder import fetch
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import Expected, FarFile, StoreError
from opsctl.transfer.sending.checkpoint import listing_proof
from opsctl.transfer.sending.plan import size_of
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.checkpoint.manifest import MANIFEST, Manifest, SavedFile, decode_manifest, iteration_of, tag_of
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import Moment
from trainer.formats.tolerant import decode

T = TypeVar("T")
#: The note that says what a folder there is.
NOTE = "backup.json"
FOLDERS = {What.FULL: "checkpoints", What.WEIGHTS: "weights"}


class FarCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """`backup.json` of a checkpoint there."""

    schema_version: int = 1
    run: str
    run_id: str = ""
    iteration: int
    what: What
    of: str  # checksum of the manifest that it had where it was saved
    files: int  # without the manifest
    bytes: int
    left_out: tuple[str, ...] = ()  # files of the whole checkpoint that are not here
    sent_at: Moment | None = None
    by: str = ""

    def line(self, to: str) -> BackedUp:
        """Return the ledger's line for it: not proven there."""
        return BackedUp(
            to=to,
            what=self.what,
            iteration=self.iteration,
            of=self.of,
            files=self.files,
            bytes=self.bytes,
            sent_at=self.sent_at,
            by=self.by,
        )


@dataclass(frozen=True)
class Found:
    """A backup: its manifest is whole and every file is there in its size."""

    note: FarCheckpoint
    manifest: Manifest
    manifest_bytes: bytes
    state: str  # `state_of` it when it was listed

    @property
    def prefix(self) -> str:
        """Return its folder there."""
        return folder_of(self.note.what, self.note.iteration)


def folder_of(what: What, iteration: int) -> str:
    """Return the folder of a checkpoint at a destination."""
    return f"{FOLDERS[what]}/{tag_of(iteration)}"


def expected(files: Mapping[str, SavedFile]) -> dict[str, Expected]:
    """Return what a manifest's files have to be."""
    return {name: Expected(file.bytes, file.xxh64) for name, file in files.items()}


def read_note(store: Store, name: str, kind: type[T]) -> T | None:
    """Return a note there; None where there is none, or it cannot be read. Raises StoreError."""
    data = store.read_if_there(name)
    return None if data is None else decode(data, kind)


def state_of(there: Mapping[str, FarFile], manifest: Manifest) -> str:
    """Return `listing_proof` of a checkpoint's files in the folder that has `there`."""
    return listing_proof(there, [*sorted(manifest.files), MANIFEST])


def find_all(store: Store) -> tuple[list[Found], dict[tuple[int, What], OpsctlError]]:
    """Return every backup of a checkpoint there, oldest first, and the fault of each folder that is none.

    Raises StoreError.
    """
    found, faults = [], {}
    for what, folder in FOLDERS.items():
        by_iteration: dict[int, dict[str, FarFile]] = {}
        for name, far in store.list(folder).items():
            tag, _, file = name.partition("/")
            if file and (iteration := iteration_of(tag)) is not None:
                by_iteration.setdefault(iteration, {})[file] = far
        for iteration, there in by_iteration.items():
            try:
                found.append(_found(store, what, iteration, there))
            except StoreError:
                raise  # it does not answer: what is there is unknown
            except OpsctlError as error:
                faults[iteration, what] = error
    return sorted(found, key=lambda one: (one.note.iteration, one.note.what)), faults


def find(store: Store, iteration: int, what: What) -> Found:
    """Return the backup of a checkpoint. Raises OpsctlError where there is none that is whole, StoreError."""
    return _found(store, what, iteration, store.list(folder_of(what, iteration)))


def _found(store: Store, what: What, iteration: int, there: Mapping[str, FarFile]) -> Found:
    prefix = folder_of(what, iteration)
    if MANIFEST not in there:
        raise OpsctlError(f"it has no {MANIFEST}, so it was not sent completely" if there else "it is not there")
    data = store.read(f"{prefix}/{MANIFEST}")
    try:
        manifest = decode_manifest(data, f"{prefix}/{MANIFEST}")
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None
    if manifest.iteration != iteration:
        raise OpsctlError(f"its manifest is that of {tag_of(manifest.iteration)}")
    for name, file in manifest.files.items():
        if name not in there or there[name].bytes != file.bytes:
            size = f"has {there[name].bytes} bytes instead of {file.bytes}" if name in there else "is not there"
            raise OpsctlError(f"{name!a} {size}")
    note = decode(store.read(f"{prefix}/{NOTE}"), FarCheckpoint) if NOTE in there else None
    if note is None or (note.iteration, note.what) != (iteration, what):
        note = FarCheckpoint(
            run="",
            iteration=iteration,
            what=what,
            of=digest_of(data) if what is What.FULL else "",
            files=len(manifest.files),
            bytes=size_of(manifest.files),
        )
    return Found(note, manifest, data, state_of(there, manifest))


def get_files(store: Store, found: Found, files: Mapping[str, SavedFile], folder: Path, flow: Flow) -> None:
    """Fetch `files` into `folder`, proven there. Raises FileFault, StoreError."""
    wanted = expected(files)
    fetch(files, lambda name: store.source(f"{found.prefix}/{name}", wanted[name]), folder, flow).raise_faults()
