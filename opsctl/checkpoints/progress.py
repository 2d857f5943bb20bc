"""How far the training is: its last whole checkpoint, and whether that is the end."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.runs.trainer_arguments import last_number
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


def is_finished(arguments: Sequence[str], checkpoint: Checkpoint | None) -> bool:
    """Whether `checkpoint` has reached the samples or iterations that the trainer's `arguments` ask for.

    Samples that fill no further global batch are never trained on, so a training can end just short of them.
    """
    if checkpoint is None:
        return False
    samples, iterations = last_number(arguments, "--train-samples"), last_number(arguments, "--train-iters")
    consumed = checkpoint.consumed_train_samples
    return (samples is not None and samples - consumed < _next_batch(arguments, consumed)) or (
        iterations is not None and checkpoint.iteration >= iterations
    )


def _next_batch(arguments: Sequence[str], consumed_samples: int) -> int:
    """Samples of the step that would come next; 1, which is never too many, when the arguments do not say."""
    batch = last_number(arguments, "--global-batch-size")
    if batch is None or batch < 1:
        return 1
    ramp: Sequence[str | int] = (batch, 1, 0)
    if "--rampup-batch-size" in arguments:
        at = len(arguments) - 1 - list(arguments)[::-1].index("--rampup-batch-size")
        ramp = arguments[at + 1 : at + 4]
    try:
        start, increment, ramp_samples = map(int, ramp)
        return BatchRamp(start, increment, ramp_samples, batch).batch_at(consumed_samples)
    except ValueError:
        return 1
