"""`manifest.json` inside a checkpoint's folder: what the checkpoint is, and the size and checksum of each of its files.

A folder without one was never finished. It is JSON so that everybody can read it without torch or unpickling anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.formats.errors import CheckpointError

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
LATEST = "latest"
TEMPORARY = ".tmp-"
_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class Manifest:
    """One checkpoint. What resumes from it must agree with its `model`, `layout` and `learning_rate`."""

    iteration: int
    consumed_train_samples: int
    consumed_train_tokens: int
    consumed_valid_samples: int
    layout: dict[str, int]  # tensor, pipeline, data, world_size, zero_stage
    model: dict[str, Any]  # the options that decide the shape of the weights
    learning_rate: dict[str, Any]  # the fields of the schedule
    files: dict[str, dict[str, Any]]  # name -> bytes, xxh64 (16 hexadecimal digits)
    precision: str = "fp32"

    def as_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "iteration": self.iteration,
            "consumed_train_samples": self.consumed_train_samples,
            "consumed_train_tokens": self.consumed_train_tokens,
            "consumed_valid_samples": self.consumed_valid_samples,
            "precision": self.precision,
            "layout": self.layout,
            "model": self.model,
            "learning_rate": self.learning_rate,
            "files": self.files,
        }


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises CheckpointError when it is missing, damaged or of another schema."""
    path = folder / MANIFEST
    try:
        stored = json.loads(path.read_text())
        version = stored["schema_version"]
        if version != SCHEMA_VERSION:
            raise CheckpointError(
                f"{path} has schema version {version}, this trainer reads {SCHEMA_VERSION}: "
                "load it with the trainer that wrote it"
            )
        return Manifest(**{key: stored[key] for key in Manifest.__dataclass_fields__})
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing, so this checkpoint was never finished: name another one in {folder.parent / LATEST}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__}: {error}): {_another(folder)}") from None


def latest_folder(root: Path) -> Path | None:
    """The folder that `root/latest` names, None without such a file. Raises CheckpointError when it names nothing."""
    pointer = root / LATEST
    try:
        tag = pointer.read_text().strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{pointer} cannot be read: {error.strerror}") from None
    if not tag or "/" in tag or tag.startswith("."):
        raise CheckpointError(f"{pointer} names no checkpoint: {tag!r}; write one of the global_step folders there")
    folder = root / tag
    if not folder.is_dir():
        raise CheckpointError(
            f"{pointer} names {tag}, which is not in {root}: write one of the global_step folders there"
        )
    return folder


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise CheckpointError naming the first file that is missing or has another size than it was written with."""
    for name, file in manifest.files.items():
        path = folder / name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise CheckpointError(f"{path} is missing or unreadable ({error.strerror}): {_another(folder)}") from None
        if size != file["bytes"]:
            raise CheckpointError(f"{path} has {size} bytes instead of {file['bytes']}: {_another(folder)}")


def check_checksums(folder: Path, manifest: Manifest, part: int = 0, parts: int = 1) -> None:
    """Read every `parts`-th file from `part` on. Raises CheckpointError naming the first whose contents changed."""
    for name in sorted(manifest.files)[part::parts]:
        found = checksum(folder / name)
        if found != manifest.files[name]["xxh64"]:
            raise CheckpointError(
                f"{folder / name} has checksum {found} instead of {manifest.files[name]['xxh64']}: {_another(folder)}"
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
