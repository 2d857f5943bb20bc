"""That somebody asked a job to end, and what is said to who asked for something when it has ended."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.state.requests import Outcome


@dataclass(frozen=True)
class ToEnd:
    """That somebody has asked this job to end."""

    asker: str
    why: str
    ending: Ending  # STOP_REQUEST, or REQUEUED

    def told(self) -> str:
        """`ben asks to requeue: node 7 is slow`."""
        what = "requeue" if self.ending == Ending.REQUEUED else "stop"
        return f"{self.asker} asks to {what}" + (f": {self.why}" if self.why else "")


def left(attempt: Attempt | None) -> tuple[Outcome, str]:
    """What is to be said to who asked for the job's end."""
    if attempt is None:
        return Outcome.DONE, "it trained nothing yet and leaves"
    at = "" if attempt.iteration_at_end is None else f" after iteration {attempt.iteration_at_end}"
    saved = attempt.checkpoint_at_end
    kept = "no checkpoint is there" if saved is None else f"the last checkpoint is iteration {saved}"
    return Outcome.DONE, f"ended{at} ({attempt.reason}), {kept}"


def left_unsaved(attempt: Attempt | None) -> tuple[Outcome, str]:
    """What is to be said to who asked for a save that the trainer has not answered."""
    outcome, words = left(attempt)
    has_it = attempt is not None and attempt.iteration_at_end == attempt.checkpoint_at_end is not None
    return (outcome if has_it else Outcome.FAILED), f"the training {words}" if attempt else "the job trained nothing"
