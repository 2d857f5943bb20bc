"""Whether a checkpoint is whole somewhere else, so that the one here may go, and why not where it is not. Pure.

Three things have to come together: the ledger has this very save there, proven and not lost since; the published
`[backup] to` still names the place; and the place says right before that all of it is still there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from opsctl.run.checkpoints.backups import BackedUp, What

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
