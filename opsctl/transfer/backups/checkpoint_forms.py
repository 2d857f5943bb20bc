"""The two forms in which a checkpoint's files lie at a destination: each by itself, or all in one tar.

Its note and its manifest lie beside them either way. Where the tar's index is, the tar counts: the index is put there
last and goes first, so that what is there is in one form or the other at any moment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.tars import INDEX, check_tar, get_members, put_tar, read_index
from opsctl.transfer.object_store.types import Expected, Outcome, StoreError
from trainer.formats.checkpoint.manifest import Manifest, SavedFile

TAR = "files.tar"
TAR_INDEX = TAR + INDEX


class Form(StrEnum):
    """How a checkpoint's files lie there."""

    FILES = "files"
    TAR = "tar"


def form_of(there: Collection[str]) -> Form:
    """The form that counts of a folder there, by the names in it."""
    return Form.TAR if TAR_INDEX in there else Form.FILES


def expected(files: Mapping[str, SavedFile]) -> dict[str, Expected]:
    """What a manifest's files have to be."""
    return {name: Expected(file.bytes, file.xxh64) for name, file in files.items()}


def refuse_what_is_short(store: Store, prefix: str, there: Mapping[str, int], manifest: Manifest) -> None:
    """Raise OpsctlError where a file of the manifest is not there, by sizes; in a tar by its index, with checksums.

    there: bytes of each name in the folder `prefix`.
    """
    sizes = dict(there)
    if form_of(there) is Form.TAR:
        index = read_index(store, f"{prefix}/{TAR}")
        if there.get(TAR) != index.bytes:
            raise OpsctlError(f"{TAR} has {there.get(TAR, 0)} bytes instead of {index.bytes}")
        members = index.expected()
        for name, wanted in expected(manifest.files).items():
            if name in members and members[name] != wanted:
                raise OpsctlError(f"{TAR_INDEX} has another {name!a} than the manifest")
        sizes = {name: member.bytes or 0 for name, member in members.items()}
    for name, file in manifest.files.items():
        if sizes.get(name) != file.bytes:
            size = "is not there" if name not in sizes else f"has {sizes[name]} bytes instead of {file.bytes}"
            raise OpsctlError(f"{name!a} {size}")


def put(store: Store, folder: int, manifest: Manifest, prefix: str, form: Form, flow: Flow) -> None:
    """Send the manifest's files in a form; what is there in the other one goes then. Raises FileFault, StoreError."""
    files = expected(manifest.files)
    there = store.list(prefix)
    if form is Form.TAR:
        put_tar(store, folder, files, f"{prefix}/{TAR}", flow).raise_faults()
        store.remove([name for name in files if name in there], prefix)
    else:
        store.put(folder, files, prefix, flow=flow).raise_faults()
        for name in (TAR_INDEX, TAR):  # in this order: without its index the tar counts no more
            if name in there:
                store.remove([name], prefix)


def get(store: Store, prefix: str, form: Form, files: Mapping[str, SavedFile], folder: Path, flow: Flow) -> None:
    """Bring `files` to `folder`; of a tar only their bytes are asked for. Raises FileFault, StoreError."""
    if form is Form.TAR:
        outcome = get_members(store, f"{prefix}/{TAR}", folder, list(files), flow)
    else:
        outcome = store.get(expected(files), folder, prefix, flow)
    outcome.raise_faults()


def check(store: Store, prefix: str, form: Form, files: Mapping[str, Expected], flow: Flow) -> Outcome:
    """Read `files` where they are, against their checksums. Raises StoreError."""
    if form is Form.TAR and files:
        return check_tar(store, f"{prefix}/{TAR}", list(files), flow)
    return store.check(files, prefix, flow=flow)


def is_damaged(store: Store, prefix: str, flow: Flow) -> bool:
    """Whether what lies there as a tar is none: its bytes count, not what a store has noted of them."""
    try:
        return bool(check_tar(store, f"{prefix}/{TAR}", flow=flow).faults)
    except StoreError:
        raise
    except OpsctlError:
        return True
