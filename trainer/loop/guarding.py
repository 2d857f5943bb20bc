"""The spike guard at work in a training: it judges each step, runs one again, and remembers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import torch.distributed as dist

from trainer.engine.build import Decides, StepResult
from trainer.formats.logs.guard_lines import LOGGED, SKIPPED, UPDATED, RunAgain, write_run_again, write_unusual
from trainer.recipe.schedule import IterationRange
from trainer.recipe.spike_guard import LOG, GuardState, SpikeGuard, Verdict, are_alike

#: Runs the step that is due, asking before its update what to do with it where anything is given.
RunStep = Callable[[Decides | None], StepResult]


class Guarding:
    """What the guard knows of the training so far. Without a guard it keeps what an earlier one left out.

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
        """What a checkpoint is to remember: None where there is neither a guard nor anything that one left out."""
        return self.state if self.guard is not None or self.state.windows else None

    def left_out(self, iteration: int) -> IterationRange | None:
        """The window that has the iteration."""
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
        """What two runs of the same step on the same data say. Collective."""
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
