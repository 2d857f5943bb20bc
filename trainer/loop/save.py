"""Saving as the training goes on, and what a checkpoint says about its training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.checkpoint.destination import Destination
from trainer.checkpoint.random_states import random_states
from trainer.checkpoint.save import save_checkpoint
from trainer.formats.log_lines import Timers, write_timers
from trainer.formats.manifest import Manifest
from trainer.formats.progress import Progress
from trainer.formats.resumable import NO_OPTIMIZER, Identity
from trainer.loop.observer import Observer, Step
from trainer.loop.tensorboard import Curves
from trainer.recipe.options import Options
from trainer.recipe.schedule import LearningRateSchedule


class Saves(Observer):
    """Saves every `interval` iterations, when asked to and before leaving, each iteration once.

    save: writes a checkpoint and returns its milliseconds. saved_iteration: the one that its latest checkpoint has.
    """

    def __init__(
        self,
        save: Callable[[Progress], float],
        interval: int | None,
        saved_iteration: int | None,
        tell: Callable[[str], None],
        curves: Curves,
    ) -> None:
        self._save, self._interval, self._saved_iteration = save, interval, saved_iteration
        self._tell, self._curves = tell, curves

    def after_step(self, step: Step) -> None:
        """Save when `interval` divides the iteration; with None, never."""
        if self._interval and step.progress.iteration % self._interval == 0:
            self.before_leaving(step.progress)

    def when_asked_to_save(self, progress: Progress) -> bool:
        """As before leaving: what is saved already is not saved again."""
        self.before_leaving(progress)
        return True

    def before_leaving(self, progress: Progress) -> None:
        """Save unless this very iteration is saved already."""
        if self._saved_iteration == progress.iteration:
            return
        times = {"save-checkpoint": self._save(progress)}
        self._saved_iteration = progress.iteration
        self._tell(write_timers(Timers(times)))
        self._curves.times(times, progress)


def saver(
    engine: PipelineEngine,
    destination: Destination,
    options: Options,
    identity: Identity,
    schedule: LearningRateSchedule,
) -> Callable[[Progress], float]:
    """What saves a checkpoint to `destination` and returns its milliseconds."""
    layout = {**identity.layout, "optimizer": NO_OPTIMIZER} if options.no_save_optim else identity.layout

    def save(progress: Progress) -> float:
        manifest = Manifest(
            **progress.counters(),
            precision=identity.precision,
            layout=layout,
            model=identity.model,
            learning_rate=asdict(schedule),
            files={},
        )
        state = {
            "checkpoint_version": 3.0,
            "args": dict(options),
            "iteration": progress.iteration,
            "tokens": progress.consumed_train_tokens,
            "consumed_train_samples": progress.consumed_train_samples,
            "consumed_valid_samples": progress.consumed_valid_samples,
            "checkpoint_info": {
                "padded_vocab_size": identity.model["padded_vocab_size"],
                "original_vocab_size": identity.model["vocab_size"],
            },
            **({} if options.no_save_rng else random_states()),
        }
        return save_checkpoint(engine, destination, manifest, state, with_optimizer=not options.no_save_optim)

    return save
