"""The training loop: leave if all ranks agree to, take one step, log, evaluate, save."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.data.build import Datasets
from trainer.engine import StepResult, parameters_norm, train_step
from trainer.formats import log_lines
from trainer.formats.leave_lines import Reason, leave_line
from trainer.formats.log_lines import Timers, perplexity, stamp, write_evaluation, write_timers
from trainer.formats.training_line import TrainingLine, write_training_line
from trainer.loop.batches import EngineItems, open_items
from trainer.loop.evaluate import Evaluation, evaluate
from trainer.loop.interval import Interval
from trainer.loop.leaving import Leaving
from trainer.loop.progress import Progress
from trainer.loop.tensorboard import Curves
from trainer.parallel.process_groups import Parallel
from trainer.recipe.lengths import Lengths
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options
from trainer.recipe.schedule import LearningRateSchedule
from trainer.recipe.sizes import HARDWARE_PASSES, MODEL_PASSES, tflops_per_gpu
from trainer.say import say


@dataclass
class Training:
    """Everything that one process's part of a training works with."""

    options: Options
    parallel: Parallel
    engine: PipelineEngine
    datasets: Datasets
    lengths: Lengths
    schedule: LearningRateSchedule
    shape: ModelShape
    progress: Progress
    leaving: Leaving
    curves: Curves
    save: Callable[[Progress], float] | None  # milliseconds; None without --save
    vocab_size: int
    end_of_document: int | None
    saved_iteration: int | None = None  # the one that --save's latest checkpoint has
    steps_done: int = 0
    interval: Interval = field(default_factory=Interval)

    @property
    def logs(self) -> bool:
        """Whether this rank prints what a training log consists of: the last one, which has the loss first."""
        return self.parallel.rank == self.parallel.world_size - 1


def train(training: Training) -> Reason:
    """Run until the end or until all ranks agree to leave; what was done is saved. Returns why it left."""
    progress, options = training.progress, training.options
    say_on_first_rank(stamp("before the start of training step"))
    items = open_items(
        training.datasets.train,
        progress.consumed_train_samples,
        options,
        training.parallel,
        training.vocab_size,
        training.end_of_document,
        for_training=True,
    )
    reason, last_words = Reason.FINISHED, ""
    try:
        while progress.iteration < training.lengths.train_iterations:
            leave = training.leaving.reason(progress.iteration, training.steps_done)
            if leave is not None:
                reason, last_words = leave
                break
            _step(training, items)
            _after_step(training)
    finally:
        if items is not None:
            items.close()
    if reason == Reason.FINISHED:
        say_on_first_rank(leave_line(Reason.FINISHED))
    _save(training)
    if reason == Reason.FINISHED:
        _evaluate_at_the_end(training)
    else:
        say_on_first_rank(last_words)
    return reason


def _step(training: Training, items: EngineItems | None) -> None:
    """One step at the batch size and the learning rate that the consumed samples ask for."""
    progress, engine = training.progress, training.engine
    batch_size = training.lengths.ramp.batch_at(progress.consumed_train_samples)
    if batch_size != engine.train_batch_size():
        engine.set_train_batch_size(batch_size)
    started = time.perf_counter()
    result = train_step(engine, items, training.schedule.at(progress.consumed_train_samples))
    seconds = time.perf_counter() - started
    progress.after_step(batch_size, training.options.seq_length)
    training.steps_done += 1
    training.interval.add(result.loss, batch_size, seconds, result.skipped)
    _report(training, result, batch_size)


def _after_step(training: Training) -> None:
    iteration, options = training.progress.iteration, training.options
    if options.eval_iters and training.datasets.valid and iteration % options.eval_interval == 0:
        _evaluate(training)
    if options.save_interval and iteration % options.save_interval == 0:
        _save(training)


def _report(training: Training, result: StepResult, batch_size: int) -> None:
    """This iteration's points and log line, where they are due. Collective with --log-params-norm."""
    options, progress = training.options, training.progress
    logs = progress.iteration % options.log_interval == 0
    draws = bool(options.tensorboard_dir) and progress.iteration % options.tensorboard_log_interval == 0
    norm = None
    if options.log_params_norm and (logs or draws):
        norm = parameters_norm(training.engine, training.parallel)
    if draws:
        training.curves.step(
            progress,
            loss=result.loss,
            learning_rate=training.schedule.at(progress.consumed_train_samples),
            batch_size=batch_size,
            loss_scale=result.loss_scale,
            grad_norm=result.gradient_norm,
            params_norm=norm,
        )
    if logs:
        _log(training, result, batch_size, norm)


def _log(training: Training, result: StepResult, batch_size: int, norm: float | None) -> None:
    """One line about the iterations since the line before, and their speed as curves."""
    options, progress, interval = training.options, training.progress, training.interval
    recomputes = options.checkpoint_activations or options.deepspeed_activation_checkpointing
    tflops = tflops_per_gpu(
        training.shape,
        interval.samples,
        options.seq_length,
        interval.seconds,
        training.parallel.world_size,
        HARDWARE_PASSES if recomputes else MODEL_PASSES,
    )
    line = TrainingLine(
        iteration=progress.iteration,
        total_iterations=training.lengths.train_iterations,
        consumed_samples=progress.consumed_train_samples,
        consumed_tokens=progress.consumed_train_tokens,
        seconds_per_iteration=interval.seconds_per_iteration,
        learning_rate=training.schedule.at(progress.consumed_train_samples),
        global_batch_size=batch_size,
        loss=interval.loss,
        loss_scale=result.loss_scale,
        grad_norm=result.gradient_norm,
        params_norm=norm,
        skipped_iterations=interval.skipped,
        nan_iterations=interval.nan,
        samples_per_second=interval.samples_per_second,
        tflops=tflops,
    )
    if training.logs:
        say(write_training_line(line))
    training.curves.speed(progress, interval.seconds_per_iteration, interval.samples_per_second, tflops)
    training.interval = Interval()


def _evaluate(training: Training) -> None:
    found = _evaluated(training, "valid")
    training.progress.consumed_valid_samples += training.options.eval_iters * training.options.global_batch_size
    _say_losses(training, found.losses, training.progress.iteration)
    if training.logs:
        say(write_timers(Timers({"evaluation": found.milliseconds})))
    for group, loss in found.losses.items():
        training.curves.validation(group, loss, training.progress)
    training.curves.times({"evaluation": found.milliseconds}, training.progress)


def _evaluate_at_the_end(training: Training) -> None:
    """Validation and test groups once more, on the finished model; nothing is left to save after it."""
    if not training.options.eval_iters or not training.steps_done:
        return
    if training.datasets.valid:
        _say_losses(training, _evaluated(training, "valid").losses, None, "val")
    if training.datasets.test:
        _say_losses(training, _evaluated(training, "test").losses, None, "test")


def _evaluated(training: Training, split: str) -> Evaluation:
    return evaluate(
        training.engine,
        training.datasets.valid if split == "valid" else training.datasets.test,
        training.progress.consumed_valid_samples if split == "valid" else 0,
        training.options,
        training.parallel,
        training.vocab_size,
        training.end_of_document,
    )


def _say_losses(training: Training, losses: dict[str, float], iteration: int | None, data: str = "val") -> None:
    if training.logs:
        for group, loss in losses.items():
            say(write_evaluation(log_lines.Evaluation(group, iteration, loss, perplexity(loss), data)))


def _save(training: Training) -> None:
    """Save, unless this very iteration is saved already or nothing is to be saved."""
    iteration = training.progress.iteration
    if training.save is None or training.saved_iteration == iteration:
        return
    milliseconds = training.save(training.progress)
    training.saved_iteration = iteration
    if training.logs:
        say(write_timers(Timers({"save-checkpoint": milliseconds})))
    training.curves.times({"save-checkpoint": milliseconds}, training.progress)


def say_on_first_rank(line: str) -> None:
    if dist.get_rank() == 0:
        say(line)
