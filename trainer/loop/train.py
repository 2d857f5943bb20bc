"""The training loop: leave or save if all ranks agree to, take one step, hand it to the observers in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.engine.build import Decides, StepResult, count_skipped_step, parameters_norm, train_step
from trainer.formats.checkpoint.history import Progress
from trainer.formats.logs.guard_lines import UNSAVED, Reason, leave_line
from trainer.formats.logs.log_lines import stamp
from trainer.loop.batches import EngineItems
from trainer.loop.guarding import Drill, Guarding, RollingBack
from trainer.loop.leaving import HardEnd, Leaving
from trainer.loop.observer import Observer, Step
from trainer.loop.rewind import InVain
from trainer.parallel.agreement import Refusal
from trainer.parallel.process_groups import Parallel
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.lengths import Lengths
from trainer.recipe.schedule import IterationRange, SkippedIterations


@dataclass(frozen=True)
class Training:
    """The parts of one process's training loop. `progress` counts on."""

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
    guarding: Guarding
    most_skipped: int = 0  # iterations in a row, skipped or without a finite loss, that end it; 0: none do
    skipped: SkippedIterations = field(default_factory=SkippedIterations)
    rolling_back: RollingBack | None = None  # None: nothing is saved that it could go back to
    drill: Drill | None = None
    shown: IterationRange | None = None  # iterations whose tokens are printed


def train(training: Training) -> Reason:
    """Run until the end or until all ranks agree to leave; what was done is saved. Returns why it left."""
    with _closing(training):
        training.tell(stamp("before the start of training step"))
        leave = _steps(training)
        training.leaving.announce(leave[0] if leave else Reason.FINISHED, training.progress.iteration)
        if leave is None:
            training.tell(leave_line(Reason.FINISHED))
        is_saved = leave is None or leave[0] not in UNSAVED
        with training.hard_end.unless_done_in(training.last_save_s, _too_late(training)):
            for observer in training.observers:
                if is_saved:
                    observer.before_leaving(training.progress)
                else:
                    observer.before_leaving_unsaved(training.progress)
        if leave is not None:
            reason, last_words = leave
            training.tell(last_words)
            return reason
        for observer in training.observers:
            observer.when_finished(training.progress)
        return Reason.FINISHED


def evaluate_only(training: Training) -> Reason:
    """Run the actions of a training's end, without a step before and without a save after. Returns why it left."""
    with _closing(training):
        training.tell(stamp("before the evaluation"))
        for observer in training.observers:
            observer.when_finished(training.progress)
        leave = training.leaving.agreed_meanwhile
        if leave is None:
            return Reason.FINISHED
        training.tell(leave[1])
        return leave[0]


@contextmanager
def _closing(training: Training) -> Iterator[None]:
    """However it ends: what hangs from here on ends by itself, and observers are closed."""
    try:
        yield
    except Refusal:
        for observer in training.observers:
            observer.when_refused()
        raise
    finally:
        training.hard_end.start()
        for observer in training.observers:
            observer.close()


def _too_late(training: Training) -> str:
    """Return the message of a rank that hangs in its last save."""
    return (
        f"this rank has not saved iteration {training.progress.iteration} within {training.last_save_s:g} s of leaving "
        "(--exit-margin-in-mins): is a file system dead? The checkpoint before it is untouched"
    )


def _steps(training: Training) -> tuple[Reason, str] | None:
    """Take one step after another; why all leave before the end and the line that says so, None at the end."""
    progress, steps_done, in_vain = training.progress, 0, InVain(training.most_skipped)
    if training.rolling_back is not None:  # the start before this one may have been ended on its way back
        training.rolling_back.if_due()
    items = training.open_items(progress.consumed_train_samples)
    try:
        while not training.lengths.end.is_reached(progress):
            leave = in_vain.reason() or training.leaving.reason(
                progress.iteration, steps_done, progress.consumed_train_samples
            )
            if leave is not None:
                return leave
            if training.leaving.asked_saves.are_due:
                training.leaving.asked_saves.carry_out(training.observers, progress)
                continue  # that may have taken long: is there time for another step?
            step = _next_step(training, items, is_first=not steps_done)
            steps_done += 1
            in_vain.count(step.result)
            for observer in training.observers:
                observer.after_step(step)
            if training.rolling_back is not None and training.rolling_back.if_due():
                in_vain.begin_anew()
                training.leaving.look_again()
    finally:
        if items is not None:
            items.close()
    return None


def _next_step(training: Training, items: EngineItems | None, is_first: bool) -> Step:
    """Take the next step, trained or skipped. is_first: of this start."""
    iteration = training.progress.iteration + 1
    is_shown = training.shown is not None and iteration in training.shown
    if items is not None:
        items.show_as(iteration if is_shown else None)
    out_of = training.skipped.at(iteration) or training.guarding.left_out(iteration)
    if out_of is None:
        return _step(training, items)
    if is_first or iteration == out_of.first:
        training.tell(f"skipping {out_of.words()} ({out_of.why}): their data is left out, and all counters move on")
    return _skipped_step(training, items if is_shown else None)


def _skipped_step(training: Training, shown: EngineItems | None) -> Step:
    """All counters as if the step had been taken. Its samples are not read, unless they are shown."""
    progress, engine = training.progress, training.engine
    batch_size = training.lengths.ramp.batch_at(progress.consumed_train_samples)
    if shown is not None:
        shown.go_to(progress.consumed_train_samples)
        shown.read(batch_size)
    count_skipped_step(engine, batch_size)
    progress.after_step(batch_size, training.sequence_length)
    return Step(
        progress=progress,
        result=None,
        batch_size=batch_size,
        seconds=0.0,
        learning_rate=training.schedule.at(progress.consumed_train_samples),
        measured_norm=lambda: parameters_norm(engine, training.parallel),
    )


def _step(training: Training, items: EngineItems | None) -> Step:
    """One step at the batch size and the learning rate that the consumed samples ask for."""
    progress, engine, schedule = training.progress, training.engine, training.schedule
    batch_size = training.lengths.ramp.batch_at(progress.consumed_train_samples)
    if batch_size != engine.train_batch_size():
        engine.set_train_batch_size(batch_size)
    started = time.perf_counter()

    def run(decides: Decides | None) -> StepResult:
        if items is not None:
            items.go_to(progress.consumed_train_samples)
        learning_rate = schedule.at(progress.consumed_train_samples)
        with training.drill.run_of(progress.iteration + 1) if training.drill else nullcontext():
            consumed = progress.consumed_train_samples
            return train_step(engine, items, learning_rate, decides, training.leaving.votes, consumed)

    result = training.guarding.step(progress.iteration + 1, run)
    training.leaving.counted(result.votes)
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
