"""The spike guard at work in a training: it judges each step, runs one again, and remembers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.checkpoint.destination import Destination
from trainer.checkpoint.into_engine import go_back, restore_random_states
from trainer.checkpoint.load import find_before, load_checkpoint
from trainer.engine.build import Decides, StepResult
from trainer.formats.checkpoint.changes import Identity
from trainer.formats.checkpoint.history import Progress
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.checkpoint.starting import is_whole_state_of
from trainer.formats.logs.guard_lines import (
    LOGGED,
    SKIPPED,
    UPDATED,
    NotRolledBack,
    RunAgain,
    write_not_rolled_back,
    write_rolled_back,
    write_run_again,
    write_unusual,
)
from trainer.loop.observer import Observer
from trainer.recipe.schedule import IterationRange
from trainer.recipe.spike_guard import DATA, FACTOR, LOG, GuardState, SpikeDrill, SpikeGuard, Verdict, Window, are_alike

#: Runs the step that is due, asking before its update what to do with it where anything is given.
RunStep = Callable[[Decides | None], StepResult]


class Guarding:
    """The spike guard's knowledge of the training so far. Without a guard it keeps what an earlier one left out.

    state: as the checkpoint has it. replica_loss: of the last step on this rank's replica alone. tell: prints a line on
    the first rank. exactly: whether the same step always gives the same bits here.
    """

    def __init__(
        self,
        guard: SpikeGuard | None,
        state: GuardState | None,
        replica_loss: Callable[[], float],
        tell: Callable[[str], None],
        exactly: bool = True,
    ) -> None:
        self.guard, self._replica_loss, self._tell, self._exactly = guard, replica_loss, tell, exactly
        self.state = state or GuardState()

    def kept(self) -> GuardState | None:
        """Return the part for a checkpoint; None without a guard and without windows that one left out."""
        return self.state if self.guard is not None or self.state.windows else None

    def left_out(self, iteration: int) -> IterationRange | None:
        """Return the window that has the iteration."""
        return next((one for one in self.state.ranges if iteration in one), None)

    def step(self, iteration: int, run: RunStep) -> StepResult:
        """Have the step run, twice where that tells hardware from data. Collective."""
        guard = self.guard
        if guard is None:
            return run(None)
        if not guard.acts_before_updates:
            result, verdict = run(None), Verdict.UPDATE
        else:
            result, verdict = self._run(guard, run, is_again=False)
            if verdict == Verdict.RERUN:
                first, own = result, self._replica_loss()
                result, verdict = self._run(guard, run, is_again=True)
                self._tell(write_run_again(self._compared(iteration, first, result, own)))
        judgement = guard.judge(self.state, result.loss, result.gradient_norm)
        is_skipped = verdict == Verdict.SKIP or result.skipped  # the engine skips what is no number by itself
        self.state = guard.after_step(self.state, iteration, judgement, is_skipped)
        if judgement.is_unusual:
            done = SKIPPED if is_skipped else LOGGED if guard.actions == {LOG} else UPDATED
            self._tell(write_unusual(iteration, judgement, done))
        return result

    def _run(self, guard: SpikeGuard, run: RunStep, is_again: bool) -> tuple[StepResult, Verdict]:
        verdicts = [Verdict.UPDATE]

        def decides(loss: float, norm: float) -> Verdict:
            verdicts.append(guard.before_update(self.state, guard.judge(self.state, loss, norm), is_again))
            return verdicts[-1]

        return run(decides), verdicts[-1]

    def _compared(self, iteration: int, first: StepResult, second: StepResult, own: float) -> RunAgain:
        """Compare two runs of the same step on the same data. Collective."""
        before, after = (first.loss, first.gradient_norm), (second.loss, second.gradient_norm)
        if are_alike(before, after, self._exactly):
            how = "bit for bit" if self._exactly else "but for the order of sums (--deterministic compares bits)"
            return RunAgain(iteration, "data", f"the same data gave the same loss and gradient norm, {how}")
        here = f"{socket.gethostname()} (rank {os.environ.get('RANK', '0')})"
        is_apart = not are_alike((own,), (self._replica_loss(),), self._exactly)
        places: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(places, here if is_apart else None)
        apart = [one for one in places if one is not None]
        where = (
            f"the replica on {', '.join(apart)} differs"
            if apart and len(apart) < len(places)
            else "on which rank is not known"
        )
        losses, norms = (f"{one!r} and {other!r}" for one, other in zip(before, after, strict=True))
        said = f"the same data gave loss {losses}, gradient norm {norms}: {where}"
        return RunAgain(iteration, "hardware", said)


class Drill:
    """Raises the loss, and with it every gradient, of the runs of steps that the drill is about.

    loss: what computes it on the last pipeline stage, as every rank has one. is_hit: whether this rank's replica is the
    one that a drill of hardware is about. tell: prints a line, on the first rank.
    """

    def __init__(self, drill: SpikeDrill, loss: Any, is_hit: bool, tell: Callable[[str], None]) -> None:
        self._drill, self._loss, self._is_hit, self._tell = drill, loss, is_hit, tell
        self._has_hit = False

    @contextmanager
    def run_of(self, iteration: int) -> Iterator[None]:
        """While a step is run."""
        drill = self._drill
        is_due = drill.first <= iteration <= drill.last and not (self._has_hit and drill.kind != DATA)
        if is_due:
            self._has_hit = True
            self._tell(f"spike drill: the loss of iteration {iteration} is multiplied by {FACTOR:g} ({drill.kind})")
        self._loss.factor = FACTOR if is_due and (drill.kind == DATA or self._is_hit) else 1.0
        try:
            yield
        finally:
            self._loss.factor = 1.0


@dataclass(frozen=True)
class RollingBack:
    """The parts for a rollback. `progress` is the training's own, which goes back with it."""

    engine: PipelineEngine
    destination: Destination
    identity: Identity
    guarding: Guarding
    progress: Progress
    observers: Sequence[Observer]
    tell: Callable[[str], None]  # prints a line, on the first rank

    def if_due(self) -> bool:
        """Between two steps: go back where the guard asks for it and a checkpoint from before the spike is there.

        Whether it went back. Collective. Raises Refusal, and Overtaken where another writer has the training.
        """
        found_at, guard = self.progress.iteration, self.guarding.guard
        wanted = guard.window_to_leave_out(self.guarding.state, found_at) if guard is not None else None
        if wanted is None:
            return False
        for observer in self.observers:
            observer.before_going_back(self.progress)
        folder = self.destination.folder
        to = find_before(folder, wanted.first, self._is_on_the_way)
        if to is None:
            why = f"{folder.path} has no sound checkpoint from before iteration {wanted.first}"
            self.tell(write_not_rolled_back(NotRolledBack(found_at, why)))
            self.guarding.state = msgspec.structs.replace(self.guarding.state, unusual=())
            return False
        why = f"{len(self.guarding.state.unusual)} unusual iterations up to {found_at}"
        window = Window(wanted.first, wanted.last, why, to.manifest.iteration, found_at)
        self.tell(write_rolled_back(window))
        go_back(self.destination, to.manifest.iteration, found_at, f"spike guard: {why}, {_left_out(wanted)}")
        restore_random_states(load_checkpoint(self.engine, to, said_as=folder.path))
        self._take_over(to.manifest.spike_guard or GuardState(), window, to.manifest.counters())
        return True

    def _is_on_the_way(self, manifest: Manifest) -> bool:
        is_on_it = self.guarding.state.came_through(manifest.iteration, manifest.spike_guard)
        return is_on_it and manifest.not_finite is None and is_whole_state_of(manifest, self.identity)

    def _take_over(self, state: GuardState, window: Window, counters: dict[str, int]) -> None:
        """Keep the decisions made since the checkpoint."""
        windows = (*self.guarding.state.windows, window)
        self.guarding.state = msgspec.structs.replace(state, windows=windows)
        for name, value in counters.items():
            setattr(self.progress, name, value)
        for observer in self.observers:
            observer.after_going_back(self.progress)


def _left_out(window: IterationRange) -> str:
    return f"{window.words()} left out"
