"""How long a training is, and what its batch size and learning rate follow: from the options. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.recipe.schedule import BatchRamp, LearningRateSchedule, train_iterations


@dataclass(frozen=True)
class Lengths:
    """All in samples or iterations of the whole training, from its very beginning."""

    ramp: BatchRamp
    schedule: LearningRateSchedule
    train_iterations: int
    train_samples: int  # what those iterations consume
    valid_samples: int  # of each validation group
    test_samples: int


def lengths(options: Mapping[str, Any]) -> Lengths:
    """Raises ValueError for a ramp or a schedule that cannot be."""
    batch = options["global_batch_size"]
    ramp = BatchRamp.constant(batch)
    if options["rampup_batch_size"]:
        start, increment, ramp_samples = options["rampup_batch_size"]
        ramp = BatchRamp(start, increment, ramp_samples, batch)
    if options["train_samples"]:
        iterations, samples = train_iterations(ramp, options["train_samples"]), options["train_samples"]
    else:
        iterations, samples = options["train_iters"], options["train_iters"] * batch
    evaluated = options["eval_iters"] * batch
    evaluations = iterations // options["eval_interval"] + 1
    return Lengths(ramp, _schedule(options, samples), iterations, samples, evaluations * evaluated, evaluated)


def _schedule(options: Mapping[str, Any], train_samples: int) -> LearningRateSchedule:
    """In samples; iterations count a global batch each, and runs counted in iterations have no ramp."""
    batch = options["global_batch_size"]
    if options["train_samples"]:
        decay = options["lr_decay_samples"] or train_samples
        warmup = options["lr_warmup_samples"]
    else:
        decay = options["lr_decay_iters"] * batch if options["lr_decay_iters"] else train_samples
        warmup = options["lr_warmup_iters"] * batch
    if options["lr_warmup_fraction"] is not None:
        warmup = int(options["lr_warmup_fraction"] * decay)
    return LearningRateSchedule(options["lr"], options["min_lr"], warmup, decay, options["lr_decay_style"])
