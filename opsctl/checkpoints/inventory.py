"""What checkpoints a run has: the one that the next task would go on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.formats.manifest import latest_reached


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, and how far the training had come."""

    folder: Path
    iteration: int
    consumed_train_samples: int


def last_checkpoint(checkpoints: Path) -> Checkpoint | None:
    """The checkpoint that `latest` names, if it is whole (has its manifest); None when there is none yet."""
    found = latest_reached(checkpoints)
    if found is None:
        return None
    folder, reached = found
    return Checkpoint(folder, reached.iteration, reached.consumed_train_samples)
