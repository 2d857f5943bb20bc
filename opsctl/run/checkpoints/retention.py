"""Which checkpoints stay, each with every reason, and which may go. Pure; what is unsure stays.

Whatever the policy says, these are never pruned: the latest, the two newest complete ones, what a training may be
loading from, what somebody is sending, what is pinned, what is later than the latest, and what is not complete. A
checkpoint that a check of its bytes found damaged is not complete. One with NaN or infinity never takes the place of a
finite one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from opsctl.run.checkpoints.backups import BackedUp, What
from opsctl.run.config.schema import RetentionTable

#: What destinations say of copies when they are asked: empty where all of it is there, else why it cannot be relied on.
Answers = Mapping[BackedUp, str]

NOT_BACKED_UP = "not backed up"


@dataclass(frozen=True)
class Copies:
    """What is on record of a run's copies, and what may be made of it."""

    ledger: Sequence[BackedUp]
    named: Collection[str]  # destinations that [backup] to names
    answers: Answers | None = None  # of destinations that were asked; None: none was, and the ledger alone counts

    def relied_on(self, iteration: int, of: str | None) -> tuple[BackedUp, ...]:
        """Those of this very save that count."""
        return tuple(line for line in self._whole(iteration, of) if not self._fault(line))

    def why_not(self, iteration: int, of: str | None) -> str:
        """Why none of this very save counts, in a clause; empty where one does."""
        whole = self._whole(iteration, of)
        faults = [self._fault(line) for line in whole]
        if whole and not all(faults):
            return ""
        return f"{NOT_BACKED_UP} ({'; '.join(faults)})" if faults else NOT_BACKED_UP

    def _whole(self, iteration: int, of: str | None) -> list[BackedUp]:
        return [line for line in self.ledger if (line.iteration, line.what, line.of) == (iteration, What.FULL, of)]

    def _fault(self, line: BackedUp) -> str:
        if line.lost:
            return f"lost in {line.to}: {line.lost}"
        if line.verified_at is None:
            return f"not proven in {line.to}"
        if line.to not in self.named:
            return f"{line.to} is not in [backup] to"
        why = "" if self.answers is None else self.answers.get(line, "was not asked")
        return f"{line.to}: {why}" if why else ""


#: Complete ones that no policy takes: the latest may turn out to be damaged.
LEAST = 2


@dataclass(frozen=True)
class Kept:
    """A checkpoint as the rules see it."""

    iteration: int
    consumed_samples: int
    is_full: bool = True  # with optimizer states
    is_pinned: bool = False  # as its manifest says
    problem: str = ""  # why it is not complete, or not to be judged; empty when it is complete
    is_finite: bool = True  # False: its manifest reports NaN or infinity


@dataclass(frozen=True)
class Progress:
    """What a decision needs to know of the training."""

    latest: int  # iteration of what the next task goes on from
    train_samples: int | None  # of the whole training; None where nobody knows
    loading: Collection[int] = ()  # iterations that somebody may be loading from now, beside the latest
    being_read: Collection[int] = ()  # iterations that somebody is sending somewhere


@dataclass(frozen=True)
class Verdict:
    """What becomes of one checkpoint."""

    iteration: int
    reasons: tuple[str, ...]  # to keep it; none: it may go

    @property
    def goes(self) -> bool:
        """Whether it may go."""
        return not self.reasons


def never_backed_up(_iteration: int) -> str:
    """For a forecast: none is backed up."""
    return NOT_BACKED_UP


def verdicts(
    found: Sequence[Kept],
    policy: RetentionTable,
    progress: Progress,
    why_not_backed_up: Callable[[int], str] = never_backed_up,
) -> list[Verdict]:
    """What becomes of each, oldest first. why_not_backed_up: why nothing elsewhere can be relied on; empty: one can."""
    in_order = sorted(found, key=lambda one: one.iteration)
    complete = [one for one in in_order if not one.problem and one.iteration <= progress.latest]
    finite = [one for one in complete if one.is_finite]
    count = max(policy.last, LEAST)
    newest = {one.iteration for one in (*complete[-count:], *finite[-count:])}
    spaced = _spaced(finite, policy, progress)

    def reasons(one: Kept) -> list[str]:
        number = one.iteration
        waits_for = why_not_backed_up(number) if _divides(policy.until_backed_up, number) else ""
        rules = (
            (bool(one.problem), "not complete"),
            (number == progress.latest, "the latest"),
            (number > progress.latest, "later than the latest"),
            (number in progress.loading, "a training may be loading it"),
            (number in progress.being_read, "it is being read"),
            (one.is_pinned or number in policy.pinned, "pinned"),
            (number in newest, f"one of the last {len(newest)}"),
            (_divides(policy.every, number), f"a multiple of {policy.every:,}"),
            (number in spaced, f"a full one each {policy.full_percent:g} % of the training"),
            (bool(waits_for), f"a multiple of {policy.until_backed_up:,}, {waits_for}"),
        )
        return [words for holds, words in rules if holds]

    return [Verdict(one.iteration, tuple(reasons(one))) for one in in_order]


def _divides(interval: int, iteration: int) -> bool:
    return interval > 0 and iteration % interval == 0


def _spaced(complete: Sequence[Kept], policy: RetentionTable, progress: Progress) -> set[int]:
    """Full ones of which each follows the one before within so much of the training, wherever there is such a one.

    From the training's beginning on always the last that is near enough. A later look, which has only what this one
    left and newer ones, chooses the same: the newest stay anyway. All where the training's length is not known.
    """
    full = [one for one in complete if one.is_full]
    if not policy.full_percent:
        return set()
    if progress.train_samples is None:
        return {one.iteration for one in full}
    apart = progress.train_samples * policy.full_percent / 100
    chosen, reached = set(), 0
    for one, after in zip(full, [*full[1:], None], strict=False):
        if after is None or after.consumed_samples - reached > apart:
            chosen.add(one.iteration)
            reached = one.consumed_samples
    return chosen
