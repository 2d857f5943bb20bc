"""What checkpoints a run has: the one that the next task would go on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.formats.checkpoint.fallback import fall_back
from trainer.formats.checkpoint.manifest import check_recorded_damage, iteration_of, latest_folder, read_manifest
from trainer.formats.checkpoint.reached import latest_reached
from trainer.formats.errors import CheckpointError


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, and how far the training had come."""

    folder: Path
    iteration: int
    consumed_train_samples: int
    consumed_train_tokens: int = 0
    not_finite: str | None = None  # a clause: which of its numbers are NaN or infinite


def last_checkpoint(checkpoints: Path) -> Checkpoint | None:
    """The checkpoint that `latest` names, if it is whole (has its manifest).

    None when there is none yet, and also where nobody can tell: `latest_problem` says which.
    """
    found = latest_reached(checkpoints)
    if found is None:
        return None
    folder, reached = found
    samples, tokens = reached.consumed_train_samples, reached.consumed_train_tokens
    return Checkpoint(folder, reached.iteration, samples, tokens, reached.not_finite)


def latest_problem(checkpoints: Path, falls_back: bool = False) -> str | None:
    """Return why no training resumes from the latest checkpoint, and the way out; None when one can.

    Checkpoints without a `latest`, one that names nothing, a manifest that cannot be read, and damage that a check of
    the bytes found are not "none yet". falls_back: the training resumes from an earlier one where the latest is
    damaged.
    """
    try:
        if falls_back and fall_back(checkpoints, {}) is not None:
            return None
        folder = latest_folder(checkpoints)
        if folder is not None:
            read_manifest(folder)
            check_recorded_damage(folder)
    except CheckpointError as error:
        return str(error)
    return None


def latest_iteration(checkpoints: Path) -> int | None:
    """Iteration of the checkpoint that is called the latest, None where that cannot be told."""
    try:
        latest = latest_folder(checkpoints)
    except CheckpointError:
        return None
    return iteration_of(latest.name) if latest else None
