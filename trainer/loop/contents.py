"""What a checkpoint says about its training, for whoever looks at it and for whoever goes on from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.checkpoint.into_engine import random_states
from trainer.formats.checkpoint.changes import Identity
from trainer.formats.checkpoint.history import Progress, Start, saved_now
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.checkpoint.partitions import INFO, saved_parameters, universal_checkpoint_info
from trainer.formats.checkpoint.starting import NO_OPTIMIZER
from trainer.loop.observer import Observer, Step
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options
from trainer.recipe.save_schedule import SaveSchedule
from trainer.recipe.spike_guard import GuardState


@dataclass(frozen=True)
class Contents:
    """All of a checkpoint but weights and optimizer states."""

    manifest: Manifest  # without its files
    client_state: dict[str, Any]  # plain data for DeepSpeed's own files


class LastLoss(Observer):
    """The loss of the last step, for whoever asks once it is taken."""

    def __init__(self) -> None:
        self._loss: float | None = None
        self.is_finite = True  # an fp16 step whose gradients overflow has a finite loss all the same
        self._without = range(0)  # iterations without a finite loss, up to the last step or right before it

    def after_step(self, step: Step) -> None:
        """Keep it; a step that was skipped has none."""
        was_finite, iteration = self.is_finite, step.progress.iteration
        if step.result is None:
            self._without = range(0) if was_finite else self._without
            return
        self.is_finite = math.isfinite(step.result.loss)
        self._loss = step.result.loss if self.is_finite else None  # JSON has no other
        if was_finite:
            self._without = range(0) if self.is_finite else range(iteration, iteration + 1)
        else:
            self._without = range(self._without.start, iteration if self.is_finite else iteration + 1)

    def after_going_back(self, progress: Progress) -> None:
        """Nobody asks before the next step has one."""
        self._loss, self.is_finite, self._without = None, True, range(0)

    def postponing(self, is_due: Callable[[int], bool]) -> Callable[[int], bool]:
        """Return `is_due` for the iteration of the last step; with a finite loss, a postponed save is due too."""
        return lambda iteration: is_due(iteration) or (self.is_finite and any(map(is_due, self._without)))

    def __call__(self) -> float | None:
        """None before the first step, and of a loss that is no number."""
        return self._loss


def contents_of(
    options: Options,
    identity: Identity,
    schedule: LearningRateSchedule,
    history: tuple[Start, ...],
    loss: Callable[[], float | None],
    guard: Callable[[], GuardState | None] = lambda: None,
    not_finite: Callable[[], str | None] = lambda: None,
) -> Callable[[Progress], Contents]:
    """What tells how far the training has come, asked at the moment that it is saved.

    history: every start of the training, this one's last. loss: of the last step. guard: what the spike guard remembers
    after it. not_finite: what of the state is not finite, where such a state is saved; collective.
    """
    layout = {**identity.layout, "optimizer": NO_OPTIMIZER} if options.no_save_optim else identity.layout
    pinned = SaveSchedule.of(options).pinned
    parameters = saved_parameters(ModelShape.of_facts(identity.model))

    def contents(progress: Progress) -> Contents:
        manifest = Manifest(
            **progress.counters(),
            precision=identity.precision,
            layout=layout,
            model=identity.model,
            learning_rate=schedule.facts(),
            files={},
            parameters=parameters,
            pinned=progress.iteration in pinned,
            training=identity.training,
            settings=identity.settings,
            loss=loss(),
            saved=saved_now(),
            history=history,
            spike_guard=guard(),
            not_finite=not_finite(),
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
            INFO: universal_checkpoint_info(identity.model),
            **({} if options.no_save_rng else random_states()),
        }
        return Contents(manifest, state)

    return contents
