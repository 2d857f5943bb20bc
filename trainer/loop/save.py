"""Saving as the training goes on."""

from __future__ import annotations

from collections.abc import Callable

from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.checkpoint.destination import Destination
from trainer.checkpoint.save import save_checkpoint
from trainer.formats.log_lines import Timers, write_timers
from trainer.formats.progress import Progress
from trainer.loop.contents import Contents
from trainer.loop.observer import Observer, Step
from trainer.loop.tensorboard import Curves


class Saves(Observer):
    """Saves when an iteration is due, when asked to and before leaving, each iteration once.

    save: writes a checkpoint and returns its milliseconds. saved_iteration: the one that its latest checkpoint has.
    is_due: whether to save after that iteration.
    """

    def __init__(
        self,
        save: Callable[[Progress], float],
        is_due: Callable[[int], bool],
        saved_iteration: int | None,
        tell: Callable[[str], None],
        curves: Curves,
    ) -> None:
        self._save, self._is_due, self._saved_iteration = save, is_due, saved_iteration
        self._tell, self._curves = tell, curves

    def after_step(self, step: Step) -> None:
        """Save when the iteration is due."""
        if self._is_due(step.progress.iteration):
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
    engine: PipelineEngine, destination: Destination, contents: Callable[[Progress], Contents], with_optimizer: bool
) -> Callable[[Progress], float]:
    """What saves a checkpoint to `destination` and returns its milliseconds."""

    def save(progress: Progress) -> float:
        now = contents(progress)
        return save_checkpoint(engine, destination, now.manifest, now.client_state, with_optimizer)

    return save
