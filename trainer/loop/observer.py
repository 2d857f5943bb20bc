"""The actions after each step: one class for each, which the training loop calls in the order of a list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from trainer.engine.build import StepResult
from trainer.formats.checkpoint.history import Progress


@dataclass(frozen=True)
class Step:
    """One step that was taken, or skipped on request; the same on every rank except `seconds`."""

    progress: Progress  # after the step; the training's own, which goes on
    result: StepResult | None  # None: it was skipped on request, and nothing was trained
    batch_size: int  # samples, over all replicas
    seconds: float  # of the step alone, 0 where it was skipped on request
    learning_rate: float  # after the step: the next one runs at it
    measured_norm: Callable[[], float]

    @cached_property
    def parameters_norm(self) -> float:
        """Norm of all parameters, measured when first asked for. Collective: all ranks ask, or none does."""
        return self.measured_norm()


#: (iteration, problem) -> None: tells who asked for a checkpoint which one is the latest now, or why there is none.
Answer = Callable[[int, str], None]


class Observer:
    """Does nothing yet: a subclass defines what it needs.

    The loop calls every rank's observers alike, so that what they do may be collective.
    """

    def after_step(self, step: Step) -> None:
        """After each step."""

    def when_asked_to_save(self, progress: Progress, answer: Answer) -> bool:
        """Save between two steps, on request; return whether this observer saves, and then answers."""
        return False

    def before_going_back(self, progress: Progress) -> None:
        """Between two steps, before the training goes back to a checkpoint: finish what is under way."""

    def after_going_back(self, progress: Progress) -> None:
        """Then, at the checkpoint: forget what came after it."""

    def before_leaving(self, progress: Progress) -> None:
        """Once, when no further step is taken: the time to keep what would be lost."""

    def before_leaving_unsaved(self, progress: Progress) -> None:
        """In its place, when what was trained last is not worth keeping: finish what is under way."""

    def when_refused(self) -> None:
        """In its place, when all ranks refuse to continue from what was trained last."""

    def when_finished(self, progress: Progress) -> None:
        """Then, if the training has come to its end."""

    def close(self) -> None:
        """At last, also after an error: let go of files."""
