"""When a training's loss or gradient norm leaves what is usual, and what is done about it. Pure, without torch.

All follows from the loss and the gradient norm that every rank has alike, the settings, and a state that checkpoints
keep: every rank decides the same, and a training that goes on decides as if it had never stopped. What is usual is said
by medians of the newest values, so that few odd ones do not move it (Hampel's identifier: the median, and 1.4826 times
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
#: Of the median absolute deviation, to be the standard deviation of what is normally distributed.
_NORMAL = 1.4826
#: So many values it takes to say what is usual.
LEAST = 32
#: What is unusual is also above the median by this share of it (loss), and by this factor (gradient norm): where hardly
#: anything varies, a small step is many deviations.
LOSS_SHARE, NORM_FACTOR = 0.05, 3.0
# The least that values are taken to vary by: of the loss in shares, of the norm's logarithm.
_LOSS_FLOOR, _NORM_FLOOR = 0.002, 0.05
# What a GPU's sums may differ by where their order is not fixed, in shares: a broken one is off by more, as a rule.
_ANOTHER_ORDER = 1e-2
# What no loss is divided by less than: of data known by heart it is 0.
_LEAST_SPREAD = 1e-12
#: Unusual iterations among so many in a row belong together.
TOGETHER = 10
#: Of unusual iterations in a row no more updates than this are skipped: what lasts longer is no spike, and a training
#: that is held up would learn nothing.
SKIPPED_IN_A_ROW = 8
#: After so many unusual iterations in a row their values count for what is usual: it is another level.
ANOTHER_LEVEL = 16


class Verdict(StrEnum):
    """What is to become of a step whose gradients are there and whose update is not made yet."""

    UPDATE = "update"
    SKIP = "skip"
    RERUN = "rerun"


class Judgement(msgspec.Struct, frozen=True):
    """A step against what is usual, in deviations; None while too little is known to say."""

    loss: float
    gradient_norm: float
    loss_deviations: float | None
    norm_deviations: float | None
    is_unusual: bool


class Window(msgspec.Struct, frozen=True):
    """Iterations whose data is left out since the training was rolled back because of it."""

    first: int
    last: int
    why: str
    rolled_back_to: int  # the checkpoint's iteration
    found_at: int  # iteration


class GuardState(msgspec.Struct, frozen=True):
    """What a guard remembers. Checkpoints keep it; it is that of the iteration that they have."""

    losses: tuple[float, ...] = ()  # usual ones, oldest first
    norms: tuple[float, ...] = ()
    unusual: tuple[int, ...] = ()  # unusual iterations among the newest TOGETHER
    row: int = 0  # unusual iterations in a row, up to the newest
    skipped: int = 0  # updates skipped in the whole training
    windows: tuple[Window, ...] = ()

    def came_through(self, iteration: int, kept: GuardState | None) -> bool:
        """Whether a checkpoint of that iteration that keeps `kept` is of the way here.

        Others are of a stretch that was gone back from, and not saved anew since.
        """
        known = kept.windows if kept is not None else ()
        missing = [one for one in self.windows if one not in known]
        return len(known) + len(missing) == len(self.windows) and all(
            iteration <= one.rolled_back_to for one in missing
        )

    @property
    def ranges(self) -> tuple[IterationRange, ...]:
        """The windows as what is skipped."""
        return tuple(IterationRange(one.first, one.last, f"the spike guard: {one.why}") for one in self.windows)


@dataclass(frozen=True)
class SpikeGuard:
    """The settings, and all decisions.

    actions: of ACTIONS. window: values that say what is usual. deviations: above it by so many is unusual. patience: so
    many unusual iterations together are a spike that passes by no skipping, and worth a rollback. margin: iterations
    before and after them that are left out with them. rollbacks: no more than so many in the whole training.
    """

    actions: frozenset[str]
    window: int
    deviations: float
    patience: int
    margin: int
    rollbacks: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SpikeGuard | None:
        """As the options say; None where nobody asks for one."""
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
        """Whether a step has to be judged before its update is made."""
        return not self.actions.isdisjoint((SKIP, RERUN))

    def judge(self, state: GuardState, loss: float, gradient_norm: float) -> Judgement:
        """How far both are above what is usual. A loss that is no number is unusual once anything is known."""
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
        """What to do with the step. is_again: whether it has been run a second time already."""
        if not judgement.is_unusual:
            return Verdict.UPDATE
        if RERUN in self.actions and not is_again:
            return Verdict.RERUN
        if SKIP in self.actions and state.row < SKIPPED_IN_A_ROW:
            return Verdict.SKIP
        return Verdict.UPDATE

    def after_step(self, state: GuardState, iteration: int, judgement: Judgement, skipped: bool) -> GuardState:
        """The state with that iteration in it. skipped: its update."""
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
        """Which iterations to leave out after a rollback before them; None where there is no reason for one.

        Nor is there one once there were as many as may be.
        """
        if ROLLBACK not in self.actions or len(state.windows) >= self.rollbacks:
            return None
        if len(state.unusual) < self.patience or state.unusual[-1] != iteration:
            return None
        return IterationRange(max(1, state.unusual[0] - self.margin), iteration + self.margin)


def are_alike(first: tuple[float, ...], second: tuple[float, ...], exactly: bool) -> bool:
    """Whether two runs of a step on the same data gave the same.

    exactly: bit for bit, as a machine does that adds up in one order; else within what sums in another order come to.
    """
    if exactly:
        return repr(first) == repr(second)  # of what is no number too
    return all(
        math.isclose(one, other, rel_tol=_ANOTHER_ORDER) or repr(one) == repr(other)
        for one, other in zip(first, second, strict=True)
    )


def _is_norm(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _usual(values: Sequence[float]) -> tuple[float, float]:
    """Median and standard deviation as the median absolute deviation tells it."""
    # It imports much, and whoever reads a checkpoint's manifest imports this module for the guard's state.
    from statistics import median

    centre = median(values)
    return centre, _NORMAL * median(abs(one - centre) for one in values)


OPTION = "--spike-drill"
DATA, HARDWARE = KINDS = ("data", "hardware")
#: How many times as high the loss is.
FACTOR = 10.0


@dataclass(frozen=True)
class SpikeDrill:
    """The loss is FACTOR times what it is.

    DATA: from `first` to `last`, whenever these iterations are run, as with data that a model cannot learn from.
    HARDWARE: when `first` is run for the first time in a process, on one replica.
    """

    kind: str
    first: int
    last: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SpikeDrill | None:
        """As the option says, None without it. Raises ValueError for a word that says no drill.

        It lasts one iteration longer than the spike guard is patient.
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
