"""The layout of a destination, which is readable without anything else.

    backup.json                          which run this is
    checkpoints/global_stepN/...         a whole checkpoint; manifest.json comes last
    weights/global_stepN/...             one without optimizer states; its manifest says so
    .../files.tar, files.tar.index.json  all of its files, where they are not there one by one
    rest/NUMBER.json, rest/NUMBER/...    an index of logs, curves and records, and the files that were new then
    data/...                             data sets; see `data_copies`

Nothing is a backup until its manifest is there. A checkpoint's files are there one by one, or all in one tar. If the
tar's index exists, the tar counts: the index is written last and removed first, so that one form counts at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.run.checkpoints.backups import BackedUp, What
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.folder import fetch
from opsctl.transfer.object_store.sources import Source
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.tars import INDEX, Index, put_tar, read_index
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
TAR = "files.tar"
TAR_INDEX = TAR + INDEX


class Form(StrEnum):
    """The form in which a checkpoint's files are stored."""

    FILES = "files"
    TAR = "tar"


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
    form: Form = Form.FILES
    sent_at: Moment | None = None
    by: str = ""

    def line(self, to: str) -> BackedUp:
        """Return the ledger's line for it: not proven there."""
        return BackedUp(
            to=to,
            what=self.what,
            iteration=self.iteration,
            of=self.of,
            form=self.form.value,
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
    index: Index | None  # of its tar

    @property
    def prefix(self) -> str:
        """Return its folder there."""
        return folder_of(self.note.what, self.note.iteration)

    def source(self, store: Store, name: str, flow: Flow | None = None) -> Source:
        """Return one of its files; of a tar only its bytes are read. Raises FileFault, StoreError."""
        file = self.manifest.files[name]
        if self.index is None:
            return store.source(f"{self.prefix}/{name}", Expected(file.bytes, file.xxh64), flow)
        member = self.index.member(name)
        return store.part(f"{self.prefix}/{TAR}", name, member.offset, member.bytes, file.xxh64, flow)


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
    names = [TAR, TAR_INDEX] if TAR_INDEX in there else sorted(manifest.files)
    return listing_proof(there, [*names, MANIFEST])


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
    index = read_index(store, f"{prefix}/{TAR}") if TAR_INDEX in there else None
    _check_sizes({name: far.bytes for name, far in there.items()}, manifest, index)
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
    note = msgspec.structs.replace(note, form=Form.FILES if index is None else Form.TAR)
    return Found(note, manifest, data, state_of(there, manifest), index)


def _check_sizes(sizes: Mapping[str, int], manifest: Manifest, index: Index | None) -> None:
    """Raise OpsctlError where a file of the manifest is not there, by sizes; in a tar by its index, with checksums."""
    if index is not None:
        if sizes.get(TAR) != index.bytes:
            raise OpsctlError(f"{TAR} has {sizes.get(TAR, 0)} bytes instead of {index.bytes}")
        members = index.expected()
        for name, wanted in expected(manifest.files).items():
            if name in members and members[name] != wanted:
                raise OpsctlError(f"{TAR_INDEX} has another {name!a} than the manifest")
        sizes = {name: member.bytes or 0 for name, member in members.items()}
    for name, file in manifest.files.items():
        if sizes.get(name) != file.bytes:
            size = "is not there" if name not in sizes else f"has {sizes[name]} bytes instead of {file.bytes}"
            raise OpsctlError(f"{name!a} {size}")


def put_files(store: Store, folder: int, manifest: Manifest, prefix: str, form: Form, flow: Flow) -> None:
    """Send the manifest's files in a form, and remove what is there in the other one. Raises FileFault, StoreError."""
    files = expected(manifest.files)
    there = store.list(prefix)
    if form is Form.TAR:
        put_tar(store, folder, files, f"{prefix}/{TAR}", flow)
        store.remove([name for name in files if name in there], prefix)
    else:
        store.put(folder, files, prefix, flow).raise_faults()
        for name in (TAR_INDEX, TAR):  # in this order: without its index the tar counts no more
            if name in there:
                store.remove([name], prefix)


def get_files(store: Store, found: Found, files: Mapping[str, SavedFile], folder: Path, flow: Flow) -> None:
    """Fetch `files` into `folder`, proven there. Raises FileFault, StoreError."""
    fetch(files, lambda name: found.source(store, name), folder, flow).raise_faults()
