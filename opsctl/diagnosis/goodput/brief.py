"""An estimate of goodput for `opsctl status`, from records only, without reading the log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.diagnosis.goodput.account import Part, account, estimated
from opsctl.diagnosis.goodput.report import WORDS, name_of
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt

#: The parts that records show; only the log shows the others.
_REPORTED = (Part.LOST, Part.WAITED, Part.IDLE)


class GoodputSeen(Struct, frozen=True, kw_only=True):
    """The approximate share of a run's time that it trained; `opsctl attempts --report` has the exact one."""

    trained_percent: Annotated[float, Meta(description="Approximate percent of the time since the first submission.")]
    most: Annotated[str, Meta(description="The largest other part, such as `lost to node-failure`; else empty.")]
    most_percent: Annotated[float, Meta(description="Approximate percent of the time.")]

    @property
    def text(self) -> str:
        """Return the estimate in words."""
        most = (
            f", {self.most_percent:.0f} % {WORDS.get(self.most, self.most)}"
            if self.most and self.most_percent >= 0.5
            else ""
        )
        return f"about {self.trained_percent:.0f} % of the time in training{most}: opsctl attempts --report"


def goodput_seen(
    attempts: Sequence[Attempt],
    submitted: Sequence[datetime],
    seconds_per_iteration: float | None,
    at: datetime,
    is_queued: bool | None,
    reached: int | None = None,
) -> GoodputSeen | None:
    """Estimate goodput with a constant time per iteration; None if that is unknown."""
    if seconds_per_iteration is None or not attempts:
        return None
    spans = estimated(attempts, seconds_per_iteration, reached)
    amounts = account(attempts, spans, submitted, {}, ended_or(attempts, at), is_queued)
    whole = amounts.whole_ms
    if not whole or not amounts.of(Part.TRAINED):
        return None
    most, key = max(((ms, key) for key, ms in amounts.wall_ms.items() if key[0] in _REPORTED), default=(0, None))
    return GoodputSeen(
        trained_percent=100 * amounts.of(Part.TRAINED) / whole,
        most=name_of(key) if key and most else "",
        most_percent=100 * most / whole,
    )


def ended_or(attempts: Sequence[Attempt], at: datetime) -> datetime:
    """Return the end of a run's time: the end of a finished training, else `at`."""
    last = attempts[-1] if attempts else None
    if last is not None and last.reason == Ending.FINISHED and last.closed_at is not None:
        return min(at, last.closed_at)
    return at
