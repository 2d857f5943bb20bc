"""Snapshots in host memory as the training goes on, beside its checkpoints."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.checkpoint.destination import Destination
from trainer.checkpoint.memory import Memory, OtherFailed, Writer, open_group, refuse_too_little_memory
from trainer.checkpoint.save import BackgroundWrite, Written
from trainer.core.console import complain
from trainer.engine.snapshot import HostCopies, snapshot
from trainer.formats.checkpoint.history import Progress
from trainer.formats.errors import CheckpointError
from trainer.loop.observer import Observer, Step
from trainer.loop.resuming import Contents

_WRITTEN, _FAILED, _UNDER_WAY = 2, 1, 0


class Snapshots(Observer):
    """Keeps the newest complete snapshot, and writes the next one beside it while the training continues.

    contents: as for a checkpoint, without its check for numbers that are not finite: the thread checks the copies.
    """

    def __init__(
        self,
        engine: PipelineEngine,
        writer: Writer,
        interval: int,
        contents: Callable[[Progress], Contents],
        with_optimizer: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._engine, self._writer, self._interval = engine, writer, interval
        self._contents, self._with_optimizer, self._tell = contents, with_optimizer, tell
        self._copies = HostCopies()
        self._complete: int | None = None  # iteration
        self._under_way: tuple[int, BackgroundWrite] | None = None
        self._is_said: set[str] = set()

    def after_step(self, step: Step) -> None:
        """Begin a snapshot where one is due, unless a rank still writes the one before. Collective then."""
        iteration = step.progress.iteration
        is_finite = step.result is None or math.isfinite(step.result.loss)
        if iteration % self._interval or not is_finite:
            return
        if not self._end(waits=False):
            before = self._under_way[0] if self._under_way else 0
            line = f"no snapshot of iteration {iteration}: that of iteration {before} is not written yet"
            self._say_once("late", line, self._tell)
            return
        started = time.perf_counter()
        now = self._contents(step.progress)
        taken = snapshot(self._engine, now.client_state, self._with_optimizer, self._copies)
        self._under_way = iteration, BackgroundWrite(lambda: self._written(taken, now))
        stall_ms = (time.perf_counter() - started) * 1000
        line = f"snapshots in memory every {self._interval} iterations; the first took {stall_ms:.1f} ms"
        self._say_once("first", line, self._tell)

    def before_going_back(self, progress: Progress) -> None:
        """Let the one under way end."""
        self._end(waits=True)

    def after_going_back(self, progress: Progress) -> None:
        """Remove what was taken after the checkpoint, and the rest with it."""
        if self._complete is not None:
            self._writer.remove(self._complete)
        self._complete = None

    def before_leaving(self, progress: Progress) -> None:
        """Remove all: the state is saved."""
        self._end(waits=True)
        self._writer.remove_all()

    before_leaving_unsaved = before_leaving

    def when_refused(self) -> None:
        """Remove all: the state is not to be continued from."""
        if self._under_way is not None:
            with contextlib.suppress(CheckpointError):
                self._under_way[1].result()
        self._writer.remove_all()

    def _end(self, waits: bool) -> bool:
        """Replace the complete snapshot by the one under way if every rank has written it. Collective.

        Return False if a rank still writes.
        """
        if self._under_way is None:
            return True
        iteration, write = self._under_way
        state = _UNDER_WAY
        if waits or write.is_done():
            try:
                write.result()
                state = _WRITTEN
            except CheckpointError as error:
                state = _FAILED
                if not isinstance(error, OtherFailed):
                    line = f"trainer: no snapshot of iteration {iteration}: {error}"
                    self._say_once(str(error), line, complain)
        least = torch.tensor([state], device=self._engine.device)
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        if int(least) == _UNDER_WAY:
            return False
        gone = self._complete if int(least) == _WRITTEN else iteration
        if gone is not None:
            self._writer.remove(gone)
        self._complete = iteration if int(least) == _WRITTEN else self._complete
        self._under_way = None
        return True

    def _written(self, taken: dict[str, Callable[[], object]], now: Contents) -> Written:
        def take() -> dict[str, Callable[[], object]]:
            if not self._copies.are_finite():
                raise CheckpointError("a weight or an optimizer state is not finite")
            return taken

        return self._writer.write(take, now.manifest)

    def _say_once(self, kind: str, line: str, say: Callable[[str], None]) -> None:
        if kind not in self._is_said:
            self._is_said.add(kind)
            say(line)


def open_snapshots(
    engine: PipelineEngine,
    destination: Destination,
    interval: int,
    contents: Callable[[Progress], Contents],
    with_optimizer: bool,
    tell: Callable[[str], None],
) -> Snapshots:
    """Return the observer. Collective. Raises Refusal if the memory does not hold two snapshots."""
    memory = Memory.of(destination)
    is_copied = memory.nodes.local_size < dist.get_world_size()
    weights = sum(one.nbytes for one in engine.module.parameters())
    moments = 3 if with_optimizer else 0  # fp32 weights and two moments
    flat = sum(one.numel() * 4 for group in engine.optimizer.optimizer.param_groups for one in group["params"])
    refuse_too_little_memory(memory.nodes, weights + moments * flat, is_copied)
    group = open_group() if is_copied else None
    writer = Writer(memory.create(), destination, memory.nodes, group)
    return Snapshots(engine, writer, interval, contents, with_optimizer, tell)
