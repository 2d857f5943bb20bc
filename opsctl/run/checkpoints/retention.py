"""Decide which checkpoints are kept, with all reasons, and which are deleted. Pure; unclear ones are kept.

Whatever the policy, these are never pruned: the latest, the two newest complete ones, those that a training may be
loading or a command is sending, pinned ones, those after the latest, and incomplete ones. A checkpoint with damaged
bytes is incomplete. One with NaN or infinity never counts in place of a finite one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from opsctl.run.checkpoints.backups import BackedUp, What
from opsctl.run.config.schema import RetentionTable

#: Destinations' answers about backups: empty if the backup is complete, else why it is unreliable.
Answers = Mapping[BackedUp, str]

NOT_BACKED_UP = "not backed up"


@dataclass(frozen=True)
class Copies:
    """The recorded backups of a run, and the answers of their destinations."""

    ledger: Sequence[BackedUp]
    named: Collection[str]  # destinations in [backup] to
    answers: Answers | None = None  # of the destinations that were asked; None: only the ledger counts

    def relied_on(self, iteration: int, of: str | None) -> tuple[BackedUp, ...]:
        """Return the reliable backups of this save."""
        return tuple(line for line in self._whole(iteration, of) if not self._fault(line))

    def why_not(self, iteration: int, of: str | None) -> str:
        """Return why no backup of this save is reliable, in a clause; empty if one is."""
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
            return f"not verified in {line.to}"
        if line.to not in self.named:
            return f"{line.to} is not in [backup] to"
        why = "" if self.answers is None else self.answers.get(line, "was not checked")
        return f"{line.to}: {why}" if why else ""


#: Complete checkpoints that no policy deletes: the latest may be damaged.
LEAST = 2


@dataclass(frozen=True)
class Kept:
    """A checkpoint as the rules see it."""

    iteration: int
    consumed_samples: int
    is_full: bool = True  # with optimizer states
    is_pinned: bool = False  # according to its manifest
    problem: str = ""  # why it is incomplete or unclear; empty if it is complete
    is_finite: bool = True  # False: its manifest reports NaN or infinity
    is_before_run: bool = False  # another training program had it before the run


@dataclass(frozen=True)
class Progress:
    """The state of the training for a decision."""

    latest: int  # iteration from which the next task resumes
    train_samples: int | None  # of the whole training; None if unknown
    loading: Collection[int] = ()  # iterations that a training may be loading, besides the latest
    being_read: Collection[int] = ()  # iterations that a command is sending


@dataclass(frozen=True)
class Verdict:
    """The decision on one checkpoint."""

    iteration: int
    reasons: tuple[str, ...]  # for keeping it; none: delete it

    @property
    def goes(self) -> bool:
        """Return True if it is deleted."""
        return not self.reasons


def never_backed_up(_iteration: int) -> str:
    """Answer for a forecast: no checkpoint is backed up."""
    return NOT_BACKED_UP


def verdicts(
    found: Sequence[Kept],
    policy: RetentionTable,
    progress: Progress,
    why_not_backed_up: Callable[[int], str] = never_backed_up,
) -> list[Verdict]:
    """Return a verdict for each, oldest first. why_not_backed_up: why no backup is reliable; empty: one is."""
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
            (one.is_before_run, "older than the run (--before-run deletes it)"),
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
    """Choose full checkpoints so that each follows the previous one within the policy's share of the training.

    Starts at the beginning and always takes the last one within reach. A later run, with only these and newer ones,
    chooses the same. Returns all if the training's length is unknown.
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
