"""Which checkpoint to go on from where the latest one is damaged, for who has asked to go on from an earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.formats.checkpoint.history import Change
from trainer.formats.checkpoint.manifest import (
    Found,
    Manifest,
    checkpoint_folders,
    is_sound,
    iteration_of,
    latest_folder,
    read_manifest,
    start_fault_of,
)
from trainer.formats.errors import CheckpointError

OPTION = "--load-fallback"


@dataclass(frozen=True)
class FellBack:
    """An earlier checkpoint in the place of the latest."""

    damaged: Path
    why: str  # a clause
    model: Manifest | None  # what the damaged one says of itself, where that can be read
    instead: Found

    @property
    def lost(self) -> int:
        """Iterations that have to be trained again."""
        return (iteration_of(self.damaged.name) or 0) - self.instead.manifest.iteration

    @property
    def change(self) -> Change:
        """For the history of what is saved from now on."""
        return Change("latest_checkpoint", self.damaged.name, self.instead.folder.name)

    def said(self) -> str:
        """One line."""
        return (
            f"{OPTION}: {self.damaged.name} is damaged ({self.why}): going on from {self.instead.folder.name}, "
            f"{self.lost} iterations are trained again"
        )


def fall_back(root: Path, damaged: Mapping[str, str]) -> FellBack | None:
    """The newest complete checkpoint before the latest of `root`, where that one is damaged; None where it is not.

    damaged: name of a checkpoint -> what more than a look at its files has found. Raises CheckpointError where nobody
    can tell which is the latest, and where no earlier one is complete.
    """

    def fault(folder: Path) -> str | None:
        return damaged.get(folder.name) or start_fault_of(folder)

    latest = latest_folder(root)
    reached = iteration_of(latest.name) if latest else None
    why = fault(latest) if latest else None
    if latest is None or reached is None or why is None:
        return None
    earlier = [one for one in checkpoint_folders(root) if (iteration_of(one.name) or 0) < reached]
    instead = next((one for one in earlier if one.name not in damaged and is_sound(one)), None)
    if instead is None:
        raise CheckpointError(f"{why}; {OPTION} finds no complete checkpoint before {latest.name} in {root}")
    return FellBack(latest, why, _manifest(latest), Found(instead, read_manifest(instead)))


def _manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except CheckpointError:
        return None
