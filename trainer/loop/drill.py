"""Making the spike that somebody asks for, in a training that does not know of it otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trainer.recipe.spike_guard import DATA, FACTOR, SpikeDrill


class Drill:
    """Raises the loss, and with it every gradient, of the runs of steps that the drill is about.

    loss: what computes it on the last pipeline stage, as every rank has one. is_hit: whether this rank's replica is the
    one that a drill of hardware is about. tell: prints a line, on the first rank.
    """

    def __init__(self, drill: SpikeDrill, loss: Any, is_hit: bool, tell: Callable[[str], None]) -> None:
        self._drill, self._loss, self._is_hit, self._tell = drill, loss, is_hit, tell
        self._has_hit = False

    @contextmanager
    def run_of(self, iteration: int) -> Iterator[None]:
        """While a step is run."""
        drill = self._drill
        is_due = drill.first <= iteration <= drill.last and not (self._has_hit and drill.kind != DATA)
        if is_due:
            self._has_hit = True
            self._tell(f"spike drill: the loss of iteration {iteration} is {FACTOR:g} times what it is ({drill.kind})")
        self._loss.factor = FACTOR if is_due and (drill.kind == DATA or self._is_hit) else 1.0
        try:
            yield
        finally:
            self._loss.factor = 1.0
