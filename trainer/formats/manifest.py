"""What a checkpoint is on disk: its folder's name, `latest`, and `manifest.json` with every file's size and checksum.

A folder without a manifest was never finished. It is JSON so that everybody can read it without torch or unpickling
anything.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from trainer.formats import tolerant
from trainer.formats.errors import CheckpointError
from trainer.formats.progress import Progress

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
LATEST = "latest"
TEMPORARY = ".tmp-"
_TAG = re.compile(r"global_step([0-9]{1,18})")
_CHUNK_BYTES = 1 << 22


class SavedFile(msgspec.Struct, frozen=True):
    """One file of a checkpoint, as it was written."""

    bytes: int
    xxh64: str  # 16 hexadecimal digits


# mypy takes a struct for a dataclass, which could not be frozen where its base is not.
class Manifest(Progress, frozen=True, kw_only=True):  # type: ignore[misc]
    """One checkpoint, and how far its training was.

    What resumes from it must agree with its `model`, `layout` and `learning_rate`.
    """

    schema_version: int = SCHEMA_VERSION
    precision: str  # "fp32", "bf16" or "fp16"
    layout: dict[str, int | str]  # tensor, pipeline, data, world_size, zero_stage, partition_method, optimizer
    model: dict[str, Any]  # the options that decide the shape of the weights
    learning_rate: dict[str, Any]  # the fields of the schedule
    files: dict[str, SavedFile]  # by name

    def as_json(self) -> dict[str, Any]:
        """The manifest's JSON object, the schema's version first."""
        value: dict[str, Any] = msgspec.to_builtins(self)
        return {"schema_version": value.pop("schema_version"), **value}


class _Schema(msgspec.Struct, frozen=True):
    schema_version: int


class Reached(msgspec.Struct, frozen=True):
    """How far a checkpoint's training had come: as much of a manifest as no schema will be without."""

    iteration: int
    consumed_train_samples: int = 0


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises CheckpointError when it is missing, damaged or of another schema."""
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
        version = msgspec.json.decode(data, type=_Schema).schema_version
        if version != SCHEMA_VERSION:
            raise CheckpointError(
                f"{path} has schema version {version}, this trainer reads {SCHEMA_VERSION}: "
                "load it with the trainer that wrote it"
            )
        return msgspec.json.decode(data, type=Manifest)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing, so this checkpoint was never finished: name another one in {folder.parent / LATEST}"
        ) from None
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__}: {error}): {_another(folder)}") from None


def tag_of(iteration: int) -> str:
    """The name of a checkpoint's folder, which is also what `latest` says."""
    return f"global_step{iteration}"


def iteration_of(tag: str) -> int | None:
    """The iteration of the checkpoint that is called `tag`, None when no checkpoint is called so."""
    match = _TAG.fullmatch(tag)
    return int(match[1]) if match else None


def latest_folder(root: Path) -> Path | None:
    """The folder that `root/latest` names, None without such a file. Raises CheckpointError when it names nothing."""
    pointer = root / LATEST
    try:
        tag = pointer.read_text(errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{pointer} cannot be read: {error.strerror}") from None
    if iteration_of(tag) is None:
        raise CheckpointError(f"{pointer} names no checkpoint: {tag!r}; write one of the global_step folders there")
    folder = root / tag
    if not folder.is_dir():
        raise CheckpointError(
            f"{pointer} names {tag}, which is not in {root}: write one of the global_step folders there"
        )
    return folder


def latest_reached(root: Path) -> tuple[Path, Reached] | None:
    """The folder that `root/latest` names and how far it is, None when it names none that was finished.

    For who only looks: whatever else is wrong with the checkpoint, or with its schema, is not found here.
    """
    try:
        folder = latest_folder(root)
        found = tolerant.decode((folder / MANIFEST).read_bytes(), Reached) if folder else None
    except (OSError, CheckpointError):
        return None
    return (folder, found) if folder and found else None


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise CheckpointError naming the first file that is missing or has another size than it was written with."""
    for name, file in manifest.files.items():
        path = folder / name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise CheckpointError(f"{path} is missing or unreadable ({error.strerror}): {_another(folder)}") from None
        if size != file.bytes:
            raise CheckpointError(f"{path} has {size} bytes instead of {file.bytes}: {_another(folder)}")


def check_checksums(folder: Path, manifest: Manifest, part: int = 0, parts: int = 1) -> None:
    """Read every `parts`-th file from `part` on. Raises CheckpointError naming the first whose contents changed."""
    for name in sorted(manifest.files)[part::parts]:
        found = checksum(folder / name)
        if found != manifest.files[name].xxh64:
            raise CheckpointError(
                f"{folder / name} has checksum {found} instead of {manifest.files[name].xxh64}: {_another(folder)}"
            )


def checksum(path: Path) -> str:
    """xxh64 of a file's contents, 16 hexadecimal digits."""
    import xxhash

    digest = xxhash.xxh64()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return str(digest.hexdigest())


def _another(folder: Path) -> str:
    return f"name another checkpoint in {folder.parent / LATEST}"
