"""The training loop: leave or save if all ranks agree to, take one step, hand it to the observers in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.engine import parameters_norm, train_step
from trainer.formats.leave_lines import Reason, leave_line
from trainer.formats.log_lines import stamp
from trainer.formats.progress import Progress
from trainer.loop.batches import EngineItems
from trainer.loop.hard_end import HardEnd
from trainer.loop.leaving import Leaving
from trainer.loop.observer import Observer, Step
from trainer.parallel.process_groups import Parallel
from trainer.recipe.lengths import Lengths
from trainer.recipe.schedule import LearningRateSchedule


@dataclass(frozen=True)
class Training:
    """What one process's part of the loop works with. `progress` counts on."""

    engine: PipelineEngine
    parallel: Parallel
    lengths: Lengths
    schedule: LearningRateSchedule
    sequence_length: int
    progress: Progress
    leaving: Leaving
    open_items: Callable[[int], EngineItems | None]  # this rank's micro-batches from a sample on, where it reads any
    observers: Sequence[Observer]
    tell: Callable[[str], None]  # prints a line, on the first rank
    hard_end: HardEnd
    last_save_s: float  # seconds that what is kept before leaving may take


def train(training: Training) -> Reason:
    """Run until the end or until all ranks agree to leave; what was done is saved. Returns why it left."""
    try:
        training.tell(stamp("before the start of training step"))
        leave = _steps(training)
        training.leaving.announce(leave[0] if leave else Reason.FINISHED, training.progress.iteration)
        if leave is None:
            training.tell(leave_line(Reason.FINISHED))
        with training.hard_end.unless_done_in(training.last_save_s, _too_late(training)):
            for observer in training.observers:
                observer.before_leaving(training.progress)
        if leave is not None:
            reason, last_words = leave
            training.tell(last_words)
            return reason
        for observer in training.observers:
            observer.when_finished(training.progress)
        return Reason.FINISHED
    finally:
        training.hard_end.start()
        for observer in training.observers:
            observer.close()


def _too_late(training: Training) -> str:
    """What a rank says that hangs in its last save."""
    return (
        f"this rank has not saved iteration {training.progress.iteration} within {training.last_save_s:g} s of leaving "
        "(--exit-margin-in-mins): is a file system dead? The checkpoint before it is untouched"
    )


def _steps(training: Training) -> tuple[Reason, str] | None:
    """Take one step after another; why all leave before the end and the line that says so, None at the end."""
    progress, steps_done = training.progress, 0
    items = training.open_items(progress.consumed_train_samples)
    try:
        while not training.lengths.end.is_reached(progress):
            leave = training.leaving.reason(progress.iteration, steps_done, progress.consumed_train_samples)
            if leave is not None:
                return leave
            if training.leaving.asked_saves.are_due:
                training.leaving.asked_saves.carry_out(training.observers, progress)
            step = _step(training, items)
            steps_done += 1
            for observer in training.observers:
                observer.after_step(step)
    finally:
        if items is not None:
            items.close()
    return None


def _step(training: Training, items: EngineItems | None) -> Step:
    """One step at the batch size and the learning rate that the consumed samples ask for."""
    progress, engine, schedule = training.progress, training.engine, training.schedule
    batch_size = training.lengths.ramp.batch_at(progress.consumed_train_samples)
    if batch_size != engine.train_batch_size():
        engine.set_train_batch_size(batch_size)
    started = time.perf_counter()
    result = train_step(engine, items, schedule.at(progress.consumed_train_samples))
    seconds = time.perf_counter() - started
    progress.after_step(batch_size, training.sequence_length)
    return Step(
        progress=progress,
        result=result,
        batch_size=batch_size,
        seconds=seconds,
        learning_rate=schedule.at(progress.consumed_train_samples),
        measured_norm=lambda: parameters_norm(engine, training.parallel),
    )
