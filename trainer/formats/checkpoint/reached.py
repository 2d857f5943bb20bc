"""How far the latest checkpoint is, for who only looks: whatever else is wrong with it is not found here."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainer.core.files import read_plain
from trainer.formats.checkpoint.manifest import LARGEST_MANIFEST_BYTES, MANIFEST, named_by_latest
from trainer.formats.errors import CheckpointError
from trainer.formats.tolerant import decode


class Reached(msgspec.Struct, frozen=True):
    """How far a checkpoint's training had come: as much of a manifest as no schema will be without."""

    iteration: int
    consumed_train_samples: int = 0
    consumed_train_tokens: int = 0
    not_finite: str | None = None


def latest_reached(root: Path) -> tuple[Path, Reached] | None:
    """The folder that `root/latest` names and how far it is, None when it names none that was finished.

    For who only looks: whatever else is wrong with the checkpoint, or with its schema, is not found here.
    """
    try:
        folder = named_by_latest(root)
        found = decode(read_plain(folder / MANIFEST, LARGEST_MANIFEST_BYTES), Reached) if folder else None
    except (OSError, CheckpointError):
        return None
    return (folder, found) if folder and found else None


def latest_beyond(root: Path, iteration: int) -> Path | None:
    """The folder that `root/latest` names, if it is finished and later than `iteration`; None without.

    Whatever would make an earlier one the latest has to ask: only a rollback on record goes back.
    """
    found = latest_reached(root)
    return found[0] if found is not None and found[1].iteration > iteration else None
