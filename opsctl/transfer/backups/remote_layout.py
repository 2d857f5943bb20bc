"""What a destination looks like, so that it explains itself to whoever has only that.

    backup.json                          which run this is
    checkpoints/global_stepN/...         a whole checkpoint; manifest.json comes last
    weights/global_stepN/...             one without optimizer states, of which its manifest says so
    .../files.tar, files.tar.index.json  all of its files, where they are not there one by one
    rest/STAMP.json, rest/STAMP/...      a look at logs, curves and records, and the files that were new then

Nothing without its manifest is a backup, and nothing is one until its manifest is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import iso
from opsctl.run.checkpoints.backups import BackedUp, What
from opsctl.transfer.backups.checkpoint_forms import TAR, TAR_INDEX, Form, form_of, refuse_what_is_short
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import FarFile, StoreError
from trainer.formats.checkpoint.manifest import MANIFEST, Manifest, SavedFile, decode_manifest, iteration_of, tag_of
from trainer.formats.checkpoint.verification import digest_of
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import Moment, json_line
from trainer.formats.tolerant import decode

#: The note that says what a folder there is.
NOTE = "backup.json"
FOLDERS = {What.FULL: "checkpoints", What.WEIGHTS: "weights"}
_ABOUT = (
    "Copies of one training, made by opsctl. `opsctl restore --from THIS --to FOLDER` brings it back; "
    "checkpoints/ has whole checkpoints, weights/ those without optimizer states; what has no manifest.json is no copy."
)


class FarRun(msgspec.Struct, frozen=True, kw_only=True):
    """`backup.json` of a destination."""

    schema_version: int = 1
    about: str = _ABOUT
    run: str  # its name
    run_id: str = ""


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


@dataclass(frozen=True)
class Found:
    """A backup as it lies there: its manifest is whole and every file there in its size."""

    note: FarCheckpoint
    manifest: Manifest
    manifest_bytes: bytes
    form: Form = Form.FILES
    state: str = ""  # `state_of` it when it was listed

    @property
    def prefix(self) -> str:
        """Its folder there."""
        return folder_of(self.note.what, self.note.iteration)


class NoManifest(OpsctlError):
    """Files of a checkpoint are there, and its manifest is not."""


def folder_of(what: What, iteration: int) -> str:
    """Where a checkpoint is at a destination."""
    return f"{FOLDERS[what]}/{tag_of(iteration)}"


def size_of(files: dict[str, SavedFile]) -> int:
    """Bytes of all of them."""
    return sum(file.bytes for file in files.values())


def state_of(there: Mapping[str, FarFile], manifest: Manifest) -> str:
    """Return a digest of what the store says of a checkpoint's files; it changes when any of them is written.

    Empty where the store says too little: then only reading the files proves them.
    """
    names = [TAR, TAR_INDEX] if form_of(there) is Form.TAR else sorted(manifest.files)
    files = [(name, there[name].bytes, there[name].mark) for name in (*names, MANIFEST) if name in there]
    if len(files) <= len(names) or not all(mark for *_, mark in files):
        return ""
    return digest_of(json_line(files).encode())


def why_lost(fault: OpsctlError, line: BackedUp) -> str:
    """Return why a copy no longer counts that the ledger has as `line`."""
    if isinstance(fault, NoManifest) and line.verified_at is not None:
        return f"its {MANIFEST} was removed there: the copy was whole on {iso(line.verified_at)}"
    return str(fault)


def read_run(store: Store) -> FarRun | None:
    """Whose copies are there; None where nothing says it. Raises StoreError."""
    if store.backend.stat(NOTE) is None:
        return None
    found = decode(store.read(NOTE), FarRun)
    if found is None:
        raise OpsctlError(f"{store.where}/{NOTE} cannot be read, so nobody can tell whose copies are there: look at it")
    return found


def refuse_another_runs(
    found: FarRun | None,
    name: str,
    run_id: str,
    where: str,
    remedy: str = "give each run a place of its own in [backup] to",
) -> None:
    """Raise OpsctlError where a destination is another run's: two runs there would take each other's places."""
    if found is None:
        return
    is_same = found.run_id == run_id if found.run_id and run_id else found.run == name
    if not is_same:
        raise OpsctlError(
            f"{where} has the copies of another run, {found.run} (id {found.run_id or 'unknown'}), "
            f"and {name} has the id {run_id or 'unknown'}: {remedy}"
        )


def find_all(store: Store) -> tuple[list[Found], dict[tuple[int, What], OpsctlError]]:
    """Return every backup of a checkpoint there, oldest first, and the fault of each folder that is none.

    Raises StoreError.
    """
    found, faults = [], {}
    for what, folder in FOLDERS.items():
        by_tag: dict[str, dict[str, FarFile]] = {}
        for name, far in store.list(folder).items():
            tag, _, rest = name.partition("/")
            if rest and iteration_of(tag) is not None:
                by_tag.setdefault(tag, {})[rest] = far
        for tag, there in by_tag.items():
            iteration = iteration_of(tag)
            assert iteration is not None, "it is called like a checkpoint"
            try:
                found.append(_found(store, what, iteration, there))
            except StoreError:
                raise  # it does not answer: of what is there nobody can tell
            except OpsctlError as error:
                faults[iteration, what] = error
    return sorted(found, key=lambda one: (one.note.iteration, one.note.what)), faults


def find(store: Store, iteration: int, what: What) -> Found:
    """The backup of a checkpoint. Raises OpsctlError where there is none that is whole, StoreError."""
    return _found(store, what, iteration, store.list(folder_of(what, iteration)))


def _found(store: Store, what: What, iteration: int, there: Mapping[str, FarFile]) -> Found:
    prefix = folder_of(what, iteration)
    if MANIFEST not in there:
        if there:
            raise NoManifest(f"it has no {MANIFEST}: it was not sent whole, or the file was removed there later")
        raise OpsctlError("it is not there")
    data = store.read(f"{prefix}/{MANIFEST}")
    try:
        manifest = decode_manifest(data, f"{prefix}/{MANIFEST}")
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None
    if manifest.iteration != iteration:
        raise OpsctlError(f"its manifest is that of {tag_of(manifest.iteration)}")
    refuse_what_is_short(store, prefix, {name: far.bytes for name, far in there.items()}, manifest)
    form = form_of(there)
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
    return Found(msgspec.structs.replace(note, form=form), manifest, data, form, state_of(there, manifest))
