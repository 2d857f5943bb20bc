"""Which checkpoints leave for another place and in which form: what a backup and a sync to a hub decide alike.

Numbers and manifests decide, and the two that look at a folder say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.run.checkpoints.backups import What
from trainer.formats.checkpoint.manifest import Manifest, checkpoint_folders, fault_of, read_manifest
from trainer.formats.checkpoint.without_optimizer import without_optimizer
from trainer.formats.errors import CheckpointError


@dataclass(frozen=True)
class Every:
    """How often checkpoints leave, in iterations; 0: never by number."""

    full: int = 0  # with all their files
    weights: int = 0  # without optimizer states, where a whole one does not leave

    def form(self, iteration: int) -> What | None:
        """In which form one leaves; None where none does. The beginning, before any iteration, is no interval's end."""
        if divides(self.full, iteration):
            return What.FULL
        return What.WEIGHTS if divides(self.weights, iteration) else None


def divides(every: int, iteration: int) -> bool:
    """Whether an iteration is one of every so many."""
    return every > 0 and iteration > 0 and iteration % every == 0


def sent_as(manifest: Manifest, what: What) -> Manifest:
    """The manifest of what is sent in that form: a place has no file that its manifest does not name."""
    return without_optimizer(manifest) if what is What.WEIGHTS else manifest


def folders_oldest_first(checkpoints: Path) -> list[Path]:
    """Every checkpoint's folder, whole or not. Raises OpsctlError where nobody can see them."""
    try:
        return checkpoint_folders(checkpoints)[::-1]
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None


def manifest_or_fault(folder: Path) -> Manifest | str:
    """A complete checkpoint's manifest, or why it is none that can leave."""
    fault = fault_of(folder)
    if fault is not None:
        return fault
    try:
        return read_manifest(folder)
    except CheckpointError as error:  # it went this moment
        return str(error)
