"""Whether a training still learns: so many iterations in a row that were skipped or had no finite loss end it.

An update that the spike guard does not make is one that was skipped.
"""

from __future__ import annotations

import math

from trainer.engine.build import StepResult
from trainer.formats.logs.guard_lines import Reason, leave_line


class InVain:
    """Counts iterations in a row that changed nothing or measured nothing.

    All ranks count the same results, so all of them come to the same end without asking each other. most: as many end
    the training; 0: none do.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._row = 0

    def count(self, result: StepResult | None) -> None:
        """Take one more iteration's result; None: skipped on request, which says nothing about the training."""
        if result is None:
            return
        self._row = self._row + 1 if result.skipped or not math.isfinite(result.loss) else 0

    def begin_anew(self) -> None:
        """What was counted is gone: the training went back to before it."""
        self._row = 0

    def reason(self) -> tuple[Reason, str] | None:
        """Why to leave now, and the line that says so; None to go on."""
        if not self._most or self._row < self._most:
            return None
        return Reason.SKIPPED_ITERATIONS, leave_line(Reason.SKIPPED_ITERATIONS, self._row)
