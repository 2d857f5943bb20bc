"""The training log's lines."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import torch
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.schedule import BackwardPass, ForwardPass

from trainer.engine.build import StepResult
from trainer.engine.members import instruction, replace_instructions
from trainer.formats.attempt.node_samples import PIPE_VARIABLE, TIMED_ITERATIONS, RankTiming
from trainer.formats.checkpoint.history import Progress
from trainer.formats.json_text import json_line
from trainer.formats.logs.training_line import TrainingLine, write_training_line
from trainer.loop.observer import Observer, Step
from trainer.loop.tensorboard import Curves
from trainer.parallel.process_groups import Parallel
from trainer.recipe.model_options import ATTENTION, BLOCK, NONE, precision_of, recomputed
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options
from trainer.recipe.sizes import Speed, Throughput, parameters, peak_tflops_of


@dataclass
class Interval:
    """Sums over the iterations since the last log line. The clock runs in steps only, not in evaluations or saves."""

    iterations: int = 0
    samples: int = 0
    seconds: float = 0.0
    skipped: int = 0
    nan: int = 0
    left_out: int = 0  # skipped on request: in no other number
    _finite_losses: list[float] = field(default_factory=list)

    def add(self, loss: float, samples: int, seconds: float, skipped: bool) -> None:
        """Count one iteration; a loss that is no finite number is counted as nan and kept out of the mean."""
        self.iterations += 1
        self.samples += samples
        self.seconds += seconds
        self.skipped += skipped
        if math.isfinite(loss):
            self._finite_losses.append(loss)
        else:
            self.nan += 1

    @property
    def loss(self) -> float | None:
        """Mean of the finite losses, None without any."""
        return math.fsum(self._finite_losses) / len(self._finite_losses) if self._finite_losses else None

    @property
    def seconds_per_iteration(self) -> float:
        """Mean over the interval. Raises ZeroDivisionError before its first iteration."""
        return self.seconds / self.iterations

    @property
    def samples_per_second(self) -> float:
        """The speed of all replicas together. Raises ZeroDivisionError before the first iteration."""
        return self.samples / self.seconds


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
        """Count the step, skipped or not; when a line is due, print it and restart the counts."""
        if step.result is None:
            self._interval.left_out += 1
        else:
            self._interval.add(step.result.loss, step.batch_size, step.seconds, step.result.skipped)
            self._last = step.result
        if step.progress.iteration % self._options.log_interval == 0:
            self._report(step, self._interval, self._last)
            self._interval, self._last = Interval(), None

    def after_going_back(self, progress: Progress) -> None:
        """Restart the counts."""
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


_COUNTED = {
    NONE: "model and hardware FLOPs, which are equal as nothing is recomputed",
    ATTENTION: "hardware FLOPs, with recomputed attention; model FLOPs are without",
    BLOCK: "hardware FLOPs, with recomputed activations; model FLOPs are without",
}


def throughput_of(options: Options, parallel: Parallel, shape: ModelShape) -> Throughput:
    """Return the constants for the speeds in the log."""
    peak = _peak(options, parallel)
    return Throughput(shape, options.seq_length, parallel.world_size, recomputed(options), peak)


def size_lines(parallel: Parallel, throughput: Throughput) -> list[str]:
    """Return the size of the model, and the bases of the log's TFLOPs and MFU."""
    lines = [f"{parameters(throughput.shape):,} parameters on {parallel.world_size} ranks: {parallel.layout}"]
    lines.append(f"TFLOPs in the log are each rank's {_COUNTED[throughput.recompute]}")
    if (peak := throughput.peak_tflops) is not None:
        lines.append(f"MFU in the log is what the model FLOPs are of {peak:g} TFLOPs, each rank's peak")
    return lines


def _peak(options: Options, parallel: Parallel) -> float | None:
    """Return the peak TFLOP/s of this rank's device: as given, or by its name; None if unknown."""
    stated: float | None = options.peak_tflops
    if stated is not None or parallel.device.type != "cuda":
        return stated
    return peak_tflops_of(torch.cuda.get_device_name(parallel.device), precision_of(options))


def sampler_pipe() -> int | None:
    """Return the descriptor of this node's sampler; None if this rank was started without one."""
    given = os.environ.get(PIPE_VARIABLE, "")
    if not given.isdecimal():
        return None
    try:
        return int(given) if stat.S_ISFIFO(os.fstat(int(given)).st_mode) else None
    except OSError:
        return None


class OwnTime(Observer):
    """Times forward and backward passes, and reports every TIMED_ITERATIONS iterations together.

    A wait inside a pass counts as part of it: the ranks of one tensor-parallel group, which are usually on one node,
    are slow together. On a GPU the time is the stream's, taken by events without waiting.
    """

    def __init__(self, engine: PipelineEngine, parallel: Parallel, pipe: int) -> None:
        self._engine, self._rank, self._stage, self._pipe = engine, parallel.rank, parallel.pipeline_rank, pipe
        self._clock = _StreamClock() if parallel.device.type == "cuda" else _WallClock()
        self._iterations, self._step_s = 0, 0.0
        replace_instructions(
            engine, {one: self._timed(instruction(engine, one)) for one in (ForwardPass, BackwardPass)}
        )

    def _timed(self, run: Callable[..., None]) -> Callable[..., None]:
        def timed(engine: PipelineEngine, *arguments: Any, **named: Any) -> None:
            if not engine.module.training:  # an evaluation is no step
                run(engine, *arguments, **named)
                return
            began = self._clock.mark()
            run(engine, *arguments, **named)
            self._clock.add(began)

        return timed

    def after_step(self, step: Step) -> None:
        """Count it; tell where as many are done."""
        if step.result is None:
            return
        self._iterations += 1
        self._step_s += step.seconds
        if step.progress.iteration % TIMED_ITERATIONS == 0:
            self._tell(step.progress.iteration)

    def after_going_back(self, progress: Progress) -> None:
        """Restart the counts."""
        self._iterations, self._step_s = 0, 0.0
        self._clock.taken_s()

    def _tell(self, iteration: int) -> None:
        told = RankTiming(
            rank=self._rank,
            stage=self._stage,
            iteration=iteration,
            iterations=self._iterations,
            own_s=round(self._clock.taken_s(), 6),
            step_s=round(self._step_s, 6),
            at=datetime.now(UTC).astimezone(),
        )
        self._iterations, self._step_s = 0, 0.0
        with contextlib.suppress(OSError):  # a sampler that is gone, or that a dead file system holds up
            os.write(self._pipe, json_line(told).encode() + b"\n")


class _WallClock:
    """The time that the process spends in a call, for a device that computes during the call."""

    def __init__(self) -> None:
        self._sum_s = 0.0

    def mark(self) -> Any:
        return time.perf_counter()

    def add(self, began: Any) -> None:
        self._sum_s += time.perf_counter() - began

    def taken_s(self) -> float:
        """All of it since the last time."""
        taken, self._sum_s = self._sum_s, 0.0
        return taken


class _StreamClock(_WallClock):
    """The time that the GPU's stream spends between two marks."""

    def __init__(self) -> None:
        super().__init__()
        self._pairs: list[tuple[Any, Any]] = []

    def mark(self) -> Any:
        began = torch.cuda.Event(enable_timing=True)
        began.record()
        return began

    def add(self, began: Any) -> None:
        ended = self.mark()
        self._pairs.append((began, ended))

    def taken_s(self) -> float:
        pairs, self._pairs = self._pairs, []
        if pairs:
            pairs[-1][1].synchronize()  # the step's numbers were read after it: this waits for nothing
        return float(sum(began.elapsed_time(ended) for began, ended in pairs)) / 1000
