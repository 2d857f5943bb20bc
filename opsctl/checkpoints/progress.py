"""Whether a training is at its end: from its options and its last checkpoint, never stored. Pure."""

from __future__ import annotations

from opsctl.checkpoints.inventory import Checkpoint
from trainer.recipe.options import Options
from trainer.recipe.schedule import BatchRamp


def is_finished(options: Options, checkpoint: Checkpoint | None) -> bool:
    """Whether `checkpoint` has reached the samples or iterations that the trainer's options ask for.

    Samples that fill no further global batch are never trained on, so a training can end just short of them.
    """
    if checkpoint is None:
        return False
    if options.train_samples is not None:
        consumed = checkpoint.consumed_train_samples
        return bool(options.train_samples - consumed < BatchRamp.of(options).batch_at(consumed))
    return options.train_iters is not None and bool(checkpoint.iteration >= options.train_iters)
