"""The training log's lines."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from trainer.engine.build import StepResult
from trainer.formats.checkpoint.history import Progress
from trainer.formats.logs.training_line import TrainingLine, write_training_line
from trainer.loop.interval import Interval
from trainer.loop.observer import Observer, Step
from trainer.loop.tensorboard import Curves
from trainer.recipe.options import Options
from trainer.recipe.sizes import Speed


class Log(Observer):
    """Every --log-interval iterations one line about those since the line before, and their speed as curves.

    speed: (samples, seconds) -> how fast that was. tell: prints a line, on the rank that does.
    """

    def __init__(
        self,
        options: Options,
        train_iterations: int,
        speed: Callable[[int, float], Speed],
        tell: Callable[[str], None],
        curves: Curves,
    ) -> None:
        self._options, self._train_iterations, self._speed = options, train_iterations, speed
        self._tell, self._curves = tell, curves
        self._interval = Interval()
        self._last: StepResult | None = None

    def after_step(self, step: Step) -> None:
        """Count the step, skipped or not; when a line is due, tell it and count anew."""
        if step.result is None:
            self._interval.left_out += 1
        else:
            self._interval.add(step.result.loss, step.batch_size, step.seconds, step.result.skipped)
            self._last = step.result
        if step.progress.iteration % self._options.log_interval == 0:
            self._report(step, self._interval, self._last)
            self._interval, self._last = Interval(), None

    def after_going_back(self, progress: Progress) -> None:
        """Count anew."""
        self._interval, self._last = Interval(), None

    def _report(self, step: Step, interval: Interval, last: StepResult | None) -> None:
        """last: of the interval's steps that were not skipped on request; without any there is nothing measured."""
        line = TrainingLine(
            iteration=step.progress.iteration,
            total_iterations=self._train_iterations,
            consumed_samples=step.progress.consumed_train_samples,
            consumed_tokens=step.progress.consumed_train_tokens,
            learning_rate=step.learning_rate,
            global_batch_size=step.batch_size,
            skipped_iterations=interval.skipped + interval.left_out,
            nan_iterations=interval.nan,
            skipped_on_request=interval.left_out or None,
        )
        if last is None:
            self._tell(write_training_line(line))
            return
        speed = self._speed(interval.samples, interval.seconds)
        line = msgspec.structs.replace(
            line,
            seconds_per_iteration=interval.seconds_per_iteration,
            loss=interval.loss,
            loss_scale=last.loss_scale,
            grad_norm=last.gradient_norm,
            params_norm=step.parameters_norm if self._options.log_params_norm else None,
            samples_per_second=interval.samples_per_second,
            tflops=speed.hardware_tflops,
            model_tflops=speed.model_tflops,
            mfu_percent=None if speed.mfu is None else speed.mfu * 100,
            tokens_per_second_per_gpu=speed.tokens_per_second,
        )
        self._tell(write_training_line(line))
        self._curves.speed(step.progress, interval.seconds_per_iteration, interval.samples_per_second, speed)
