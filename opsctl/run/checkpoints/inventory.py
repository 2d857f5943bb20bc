"""The checkpoint from which a run's next task would resume."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from opsctl.core.files.trusted import opened_folder
from trainer.formats.checkpoint.manifest import (
    MANIFEST,
    check_recorded_damage,
    iteration_of,
    latest_folder,
    read_manifest,
)
from trainer.formats.checkpoint.starting import fall_back, latest_reached
from trainer.formats.errors import CheckpointError
from trainer.recipe.lengths import BEGINNING, End
from trainer.recipe.options import Options


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint, and the progress of the training in it."""

    folder: Path
    iteration: int
    consumed_train_samples: int
    consumed_train_tokens: int = 0
    not_finite: str | None = None  # a clause that names the numbers with NaN or infinity


def last_checkpoint(checkpoints: Path) -> Checkpoint | None:
    """Return the complete checkpoint that `latest` names; None without one, see `latest_problem`."""
    found = latest_reached(checkpoints)
    if found is None:
        return None
    folder, reached = found
    samples, tokens = reached.consumed_train_samples, reached.consumed_train_tokens
    return Checkpoint(folder, reached.iteration, samples, tokens, reached.not_finite)


def latest_problem(checkpoints: Path, falls_back: bool = False) -> str | None:
    """Return why no training resumes from the latest checkpoint, and the solution; None if one can. falls_back: an
    earlier checkpoint may replace a damaged latest.
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
    """Return the iteration of the latest checkpoint; None if unknown."""
    try:
        latest = latest_folder(checkpoints)
    except CheckpointError:
        return None
    return iteration_of(latest.name) if latest else None


class Length(NamedTuple):
    """The length of a training according to its options; None: not counted in this unit."""

    samples: int | None
    iterations: int | None


def is_finished(options: Options, checkpoint: Checkpoint | None) -> bool:
    """Return True if the trainer would take no further step from `checkpoint`."""
    end = _end(options)
    return checkpoint is not None and end is not None and end.is_reached(checkpoint)


def length(options: Options, checkpoint: Checkpoint | None) -> Length:
    """Return the length that the options define, with tokens as samples."""
    end = _end(options)
    if end is None:
        return Length(None, None)
    return Length(end.samples_in_all(checkpoint or BEGINNING), end.iterations)


def _end(options: Options) -> End | None:
    """Return the end that the options define; None without one or with invalid options, which train nothing."""
    try:
        return End.of(options)
    except (TypeError, ValueError):
        return None


def mark_of(root: Path, folder: Path) -> str:
    """Return an identifier that a checkpoint's folder keeps when it is moved, and that differs for a later one. Raises
    OSError, Untrusted.
    """
    with opened_folder(root, folder) as (opened, _):
        number, whole_ns = os.fstat(opened).st_ino, 0
        with contextlib.suppress(FileNotFoundError):
            whole_ns = os.stat(MANIFEST, dir_fd=opened, follow_symlinks=False).st_mtime_ns
    return f"{number}.{whole_ns}"
