"""How long this rank computes by itself, told to its node's sampler: all wait for a slow node, it for none."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import torch
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.schedule import BackwardPass, ForwardPass

from trainer.formats.attempt.node_samples import PIPE_VARIABLE, TIMED_ITERATIONS, RankTiming
from trainer.formats.checkpoint.history import Progress
from trainer.formats.json_text import json_line
from trainer.loop.observer import Observer, Step
from trainer.parallel.process_groups import Parallel


def sampler_pipe() -> int | None:
    """The descriptor of this node's sampler; None where this rank was started without one."""
    given = os.environ.get(PIPE_VARIABLE, "")
    if not given.isdecimal():
        return None
    try:
        return int(given) if stat.S_ISFIFO(os.fstat(int(given)).st_mode) else None
    except OSError:
        return None


class OwnTime(Observer):
    """Times forward and backward passes, and tells of every TIMED_ITERATIONS iterations together.

    What a pass waits for within itself counts as its own: the ranks of one tensor-parallel group, which as a rule are
    on one node, are slow together. On a GPU the time is the stream's, taken by events that nobody waits for.
    """

    def __init__(self, engine: PipelineEngine, parallel: Parallel, pipe: int) -> None:
        self._engine, self._rank, self._stage, self._pipe = engine, parallel.rank, parallel.pipeline_rank, pipe
        self._clock = _StreamClock() if parallel.device.type == "cuda" else _WallClock()
        self._iterations, self._step_s = 0, 0.0
        timed = {one: self._timed(engine._INSTRUCTION_MAP[one]) for one in (ForwardPass, BackwardPass)}
        engine._INSTRUCTION_MAP = {**engine._INSTRUCTION_MAP, **timed}

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
        """Begin anew."""
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
    """What the process spends in a call, for a device that computes while it is called."""

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
    """What the GPU's stream spends between two marks in it."""

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
