"""Detection of unusual loss or gradient norm, and the decisions about it. Pure, without torch.

The decisions depend only on loss and gradient norm, which all ranks share, the settings, and a state that checkpoints
keep. Every rank decides the same, and a resumed training decides as if it had never stopped. The usual value is the
median of the newest values, so that a few odd ones do not move it (Hampel's identifier: the median, and 1.4826 times
the median absolute deviation). Gradient norms are compared by their logarithms, as they vary by factors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from trainer.recipe.schedule import IterationRange

LOG, SKIP, RERUN, ROLLBACK = ACTIONS = ("log", "skip", "rerun", "rollback")
#: Converts the median absolute deviation of a normal distribution to its standard deviation.
_NORMAL = 1.4826
#: Least number of values for a median.
LEAST = 32
#: Unusual values must also be above the median by this share (loss) and this factor (gradient norm): if values hardly
#: vary, a small step is many deviations.
LOSS_SHARE, NORM_FACTOR = 0.05, 3.0
# The least assumed variation: of the loss as a share, of the norm's logarithm.
_LOSS_FLOOR, _NORM_FLOOR = 0.002, 0.05
# The largest difference of a GPU's sums in an unfixed order, as a share. A broken GPU usually differs by more.
_ANOTHER_ORDER = 1e-2
# Least divisor of a loss: the loss of memorised data is 0.
_LEAST_SPREAD = 1e-12
#: Unusual iterations among so many in a row belong together.
TOGETHER = 10
#: Most updates skipped in a row. A longer deviation is not a spike, and skipping everything would stop
#: the training's progress.
SKIPPED_IN_A_ROW = 8
#: After so many unusual iterations in a row, their values count as usual: it is a new level.
ANOTHER_LEVEL = 16


class Verdict(StrEnum):
    """The decision about a step whose gradients are computed and whose update is not applied yet."""

    UPDATE = "update"
    SKIP = "skip"
    RERUN = "rerun"


class Judgement(msgspec.Struct, frozen=True):
    """The deviations of a step from the usual values; None while too few values are known."""

    loss: float
    gradient_norm: float
    loss_deviations: float | None
    norm_deviations: float | None
    is_unusual: bool


class Window(msgspec.Struct, frozen=True):
    """The iterations whose data is skipped after a rollback."""

    first: int
    last: int
    why: str
    rolled_back_to: int  # the checkpoint's iteration
    found_at: int  # iteration


class GuardState(msgspec.Struct, frozen=True):
    """The guard's state. Each checkpoint keeps the state of its iteration."""

    losses: tuple[float, ...] = ()  # usual ones, oldest first
    norms: tuple[float, ...] = ()
    unusual: tuple[int, ...] = ()  # unusual iterations among the newest TOGETHER
    row: int = 0  # unusual iterations in a row, up to the newest
    skipped: int = 0  # updates skipped in the whole training
    windows: tuple[Window, ...] = ()

    def came_through(self, iteration: int, kept: GuardState | None) -> bool:
        """Return True if a checkpoint of that iteration with the state `kept` is part of this training's history.

        Other checkpoints are from before a rollback, and were not saved again since.
        """
        known = kept.windows if kept is not None else ()
        missing = [one for one in self.windows if one not in known]
        return len(known) + len(missing) == len(self.windows) and all(
            iteration <= one.rolled_back_to for one in missing
        )

    @property
    def ranges(self) -> tuple[IterationRange, ...]:
        """The windows as ranges of skipped iterations."""
        return tuple(IterationRange(one.first, one.last, f"the spike guard: {one.why}") for one in self.windows)


@dataclass(frozen=True)
class SpikeGuard:
    """The settings and decisions of the guard.

    actions: of ACTIONS. window: number of values for the median. deviations: the limit for unusual values. patience:
    number of unusual iterations together that skipping does not fix, and that cause a rollback. margin: iterations
    before and after them that are also skipped. rollbacks: the most in the whole training.
    """

    actions: frozenset[str]
    window: int
    deviations: float
    patience: int
    margin: int
    rollbacks: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SpikeGuard | None:
        """Return the options' guard; None without one."""
        if not options["spike_guard"]:
            return None
        return cls(
            frozenset(options["spike_guard"]),
            options["spike_guard_window"],
            options["spike_guard_deviations"],
            options["spike_guard_patience"],
            options["spike_guard_margin"],
            options["spike_guard_rollbacks"],
        )

    @property
    def acts_before_updates(self) -> bool:
        """True if a step must be judged before its update."""
        return not self.actions.isdisjoint((SKIP, RERUN))

    def judge(self, state: GuardState, loss: float, gradient_norm: float) -> Judgement:
        """Return how far both exceed the usual values. A loss that is not a number is unusual if values are known."""
        if len(state.losses) < LEAST:
            return Judgement(loss, gradient_norm, None, None, is_unusual=False)
        if not math.isfinite(loss):
            return Judgement(loss, gradient_norm, math.inf, None, is_unusual=True)
        centre, spread = _usual(state.losses)
        above = (loss - centre) / max(spread, _LOSS_FLOOR * abs(centre), _LEAST_SPREAD)
        is_unusual = above > self.deviations and loss > (1 + LOSS_SHARE) * centre
        if not _is_norm(gradient_norm):  # the engine makes no update of it
            return Judgement(loss, gradient_norm, above, None, is_unusual)
        norm_centre, norm_spread = _usual([math.log(one) for one in state.norms])
        norm_above = (math.log(gradient_norm) - norm_centre) / max(norm_spread, _NORM_FLOOR)
        is_unusual |= norm_above > self.deviations and gradient_norm > NORM_FACTOR * math.exp(norm_centre)
        return Judgement(loss, gradient_norm, above, norm_above, is_unusual)

    def before_update(self, state: GuardState, judgement: Judgement, is_again: bool) -> Verdict:
        """Return the decision about the step. is_again: the step was already repeated."""
        if not judgement.is_unusual:
            return Verdict.UPDATE
        if RERUN in self.actions and not is_again:
            return Verdict.RERUN
        if SKIP in self.actions and state.row < SKIPPED_IN_A_ROW:
            return Verdict.SKIP
        return Verdict.UPDATE

    def after_step(self, state: GuardState, iteration: int, judgement: Judgement, skipped: bool) -> GuardState:
        """Return the state after that iteration. skipped: its update was skipped."""
        counts = not judgement.is_unusual or state.row >= ANOTHER_LEVEL
        is_number = math.isfinite(judgement.loss) and _is_norm(judgement.gradient_norm)
        losses, norms = state.losses, state.norms
        if counts and is_number:
            losses = (*losses, judgement.loss)[-self.window :]
            norms = (*norms, judgement.gradient_norm)[-self.window :]
        together = tuple(one for one in state.unusual if iteration - one < TOGETHER)
        return msgspec.structs.replace(
            state,
            losses=losses,
            norms=norms,
            unusual=(*together, iteration) if judgement.is_unusual else together,
            row=state.row + 1 if judgement.is_unusual else 0,
            skipped=state.skipped + skipped,
        )

    def window_to_leave_out(self, state: GuardState, iteration: int) -> IterationRange | None:
        """Return the iterations to skip after a rollback before them; None if there is no reason for one.

        There is none either after the most rollbacks.
        """
        if ROLLBACK not in self.actions or len(state.windows) >= self.rollbacks:
            return None
        if len(state.unusual) < self.patience or state.unusual[-1] != iteration:
            return None
        return IterationRange(max(1, state.unusual[0] - self.margin), iteration + self.margin)


def are_alike(first: tuple[float, ...], second: tuple[float, ...], exactly: bool) -> bool:
    """Return True if two runs of a step on the same data gave the same result.

    exactly: bit for bit, for machines that add in a fixed order; otherwise within the effect of another order.
    """
    if exactly:
        return repr(first) == repr(second)  # also true for two nan
    return all(
        math.isclose(one, other, rel_tol=_ANOTHER_ORDER) or repr(one) == repr(other)
        for one, other in zip(first, second, strict=True)
    )


def _is_norm(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _usual(values: Sequence[float]) -> tuple[float, float]:
    """Return median and standard deviation, estimated from the median absolute deviation."""
    # The import is large, and readers of manifests import this module for the guard's state.
    from statistics import median

    centre = median(values)
    return centre, _NORMAL * median(abs(one - centre) for one in values)


OPTION = "--spike-drill"
DATA, HARDWARE = KINDS = ("data", "hardware")
#: The factor of the loss.
FACTOR = 10.0


@dataclass(frozen=True)
class SpikeDrill:
    """A drill that multiplies the loss by FACTOR.

    DATA: from `first` to `last`, each time these iterations run, like data from which a model cannot learn. HARDWARE:
    on the first run of `first` in a process, on one replica.
    """

    kind: str
    first: int
    last: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SpikeDrill | None:
        """Return the options' drill; None without one. Raises ValueError for an invalid word.

        It lasts one iteration longer than the spike guard's patience.
        """
        word = options["spike_drill"]
        if word is None:
            return None
        match = re.fullmatch(r"([1-9][0-9]{0,17})(?::(\w+))?", word)
        if match is None:
            raise ValueError(f"{OPTION} {word}: give ITERATION or ITERATION:KIND, iterations counted from 1")
        first, kind = int(match[1]), match[2] or DATA
        if kind not in KINDS:
            raise ValueError(f"{OPTION} {word}: {kind} is no kind of spike; there are {', '.join(KINDS)}")
        return cls(kind, first, first + (options["spike_guard_patience"] if kind == DATA else 0))
