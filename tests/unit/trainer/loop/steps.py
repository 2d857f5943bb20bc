"""Steps as observers get them."""

from __future__ import annotations

from collections.abc import Callable

from trainer.engine.build import StepResult
from trainer.formats.checkpoint.history import Progress
from trainer.loop.observer import Step

BATCH, SEQUENCE = 8, 16


def step_at(
    iteration: int,
    loss: float = 2.0,
    seconds: float = 0.5,
    skipped: bool = False,
    measured_norm: Callable[[], float] = lambda: 3.0,
) -> Step:
    """Return the step that ended at `iteration` of a training whose batch never grew."""
    progress = Progress.none()
    progress.iteration = iteration
    progress.consumed_train_samples = iteration * BATCH
    progress.consumed_train_tokens = iteration * BATCH * SEQUENCE
    return Step(progress, StepResult(loss, 1.5, None, skipped), BATCH, seconds, 1e-3, measured_norm)
