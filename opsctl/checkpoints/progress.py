"""How far the training is: its last whole checkpoint, and whether that is the end."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from trainer.recipe.options import Options
from trainer.recipe.schedule import BatchRamp

_TAG = re.compile(r"global_step(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """What the newest manifest says."""

    folder: Path
    iteration: int
    consumed_train_samples: int


def last_checkpoint(checkpoints: Path) -> Checkpoint | None:
    """The checkpoint that `latest` names, if it is whole (has its manifest); None when there is none yet."""
    try:
        tag = (checkpoints / "latest").read_text().strip()
        if not _TAG.fullmatch(tag):
            return None
        manifest = json.loads((checkpoints / tag / "manifest.json").read_text())
        return Checkpoint(
            checkpoints / tag, int(manifest["iteration"]), int(manifest.get("consumed_train_samples") or 0)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_finished(options: Options, checkpoint: Checkpoint | None) -> bool:
    """Whether `checkpoint` has reached the samples or iterations that the trainer's options ask for.

    Samples that fill no further global batch are never trained on, so a training can end just short of them.
    """
    if checkpoint is None:
        return False
    if options.train_samples is not None:
        consumed = checkpoint.consumed_train_samples
        return bool(options.train_samples - consumed < _ramp(options).batch_at(consumed))
    return options.train_iters is not None and bool(checkpoint.iteration >= options.train_iters)


def _ramp(options: Options) -> BatchRamp:
    if not options.rampup_batch_size:
        return BatchRamp.constant(options.global_batch_size)
    start, increment, ramp_samples = options.rampup_batch_size
    return BatchRamp(start, increment, ramp_samples, options.global_batch_size)
