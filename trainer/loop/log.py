"""The training log's lines."""

from __future__ import annotations

from collections.abc import Callable

from trainer.formats.training_line import TrainingLine, write_training_line
from trainer.loop.interval import Interval
from trainer.loop.observer import Observer, Step
from trainer.loop.tensorboard import Curves
from trainer.recipe.options import Options


class Log(Observer):
    """Every --log-interval iterations one line about those since the line before, and their speed as curves.

    tflops: (samples, seconds) -> each rank's TFLOPs. tell: prints a line, on the rank that does.
    """

    def __init__(
        self,
        options: Options,
        train_iterations: int,
        tflops: Callable[[int, float], float],
        tell: Callable[[str], None],
        curves: Curves,
    ) -> None:
        self._options, self._train_iterations, self._tflops = options, train_iterations, tflops
        self._tell, self._curves = tell, curves
        self._interval = Interval()

    def after_step(self, step: Step) -> None:
        """Count the step, skipped or not; when a line is due, tell it and count anew."""
        self._interval.add(step.result.loss, step.batch_size, step.seconds, step.result.skipped)
        if step.progress.iteration % self._options.log_interval == 0:
            self._report(step, self._interval)
            self._interval = Interval()

    def _report(self, step: Step, interval: Interval) -> None:
        tflops = self._tflops(interval.samples, interval.seconds)
        line = TrainingLine(
            iteration=step.progress.iteration,
            total_iterations=self._train_iterations,
            consumed_samples=step.progress.consumed_train_samples,
            consumed_tokens=step.progress.consumed_train_tokens,
            seconds_per_iteration=interval.seconds_per_iteration,
            learning_rate=step.learning_rate,
            global_batch_size=step.batch_size,
            loss=interval.loss,
            loss_scale=step.result.loss_scale,
            grad_norm=step.result.gradient_norm,
            params_norm=step.parameters_norm if self._options.log_params_norm else None,
            skipped_iterations=interval.skipped,
            nan_iterations=interval.nan,
            samples_per_second=interval.samples_per_second,
            tflops=tflops,
        )
        self._tell(write_training_line(line))
        self._curves.speed(step.progress, interval.seconds_per_iteration, interval.samples_per_second, tflops)
