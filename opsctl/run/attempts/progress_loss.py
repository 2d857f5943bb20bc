"""Whether the latest checkpoint is earlier than the last attempt left it, and nobody is on record for that. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.run.attempts.close_lost import CLOCK_TOLERANCE
from opsctl.run.attempts.ending import STARTED_NOTHING
from opsctl.run.attempts.events import Attempt
from trainer.formats.checkpoint.rollbacks import Rollback


def went_back(latest: int | None, attempts: Sequence[Attempt], rollbacks: Sequence[Rollback]) -> str | None:
    """What is to be said of it; None when all is well, or when there is no `latest`: that is another trouble.

    latest: its iteration. A rollback explains what is at or after it, if it was made since that attempt ended.
    """
    trained = (one for one in reversed(attempts) if one.reason not in STARTED_NOTHING)
    last = next((one for one in trained if one.checkpoint_at_end is not None), None)
    if latest is None or last is None or last.checkpoint_at_end is None or latest >= last.checkpoint_at_end:
        return None
    if any(one.to <= latest and _is_since(one, last) for one in rollbacks):
        return None
    was = f"iteration {last.checkpoint_at_end}, where attempt {last.number} left it"
    return f"the latest checkpoint went back from {was}, to {latest}, and no rollback is on record"


def _is_since(rollback: Rollback, attempt: Attempt) -> bool:
    if rollback.at is None or attempt.closed_at is None:
        return True
    return rollback.at + CLOCK_TOLERANCE >= attempt.closed_at
