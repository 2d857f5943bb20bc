"""Translate a program's output to the lines of a training log that opsctl reads everywhere.

The output stays in the log as it is. After each step that the program reports, a line of Megatron's form is added, and
status, checks, reports and triage read that one.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import replace

from opsctl.run.programs.kind import Progress
from trainer.formats.logs.training_line import TrainingLine, write_training_line

_LINE_ENDS = re.compile(rb"[\r\n]+")
#: Colours, and commands to a terminal.
_CODES = re.compile(r"\x1b\[[\d;?]{0,20}[A-Za-z]")
#: Bytes of one line that are looked at; a bar without an end must not fill the memory.
_LONGEST = 64 * 1024
#: A bar is drawn many times a second: at most one line is added in this time, seconds.
_EVERY_S = 1.0
#: The same between lines with a loss: readers look for the newest loss in the last lines.
_BETWEEN_LOSSES_S = 10.0


class Translator:
    """Reads output in chunks, and gives lines for the log."""

    def __init__(
        self,
        progress: Callable[[str], Progress | None],
        total_iterations: int | None = None,
        global_batch_size: int | None = None,
        clock: Callable[[], float] | None = time.monotonic,
    ) -> None:
        """Take a kind's `progress`, and the length and batch of `[program]`, None where it has none.

        clock: None for a log from before, in which each step counts and an older one is of a new start.
        """
        self._parse, self._clock = progress, clock
        self._total, self._batch = total_iterations, global_batch_size
        self._seen = Progress()
        self._has_loss = False  # a loss was reported
        self._early = Progress()  # values of the next iteration that is reported
        self._seconds: float | None = None
        self._rest = b""
        self._written = -1  # the newest iteration with a line
        self._written_at: float | None = None

    def lines(self, data: bytes) -> list[str]:
        """Return the lines that `data` adds, at most one for each iteration and second."""
        *parts, rest = _LINE_ENDS.split(self._rest + data)
        self._rest = rest[-_LONGEST:]
        found = []
        # A bar ends without a line end: what follows it may be a step away.
        for part in (*parts, self._rest) if self._rest.endswith(b"]") else parts:
            progress = self._parse(_CODES.sub("", part.decode(errors="replace"))) if part else None
            if progress is None:
                continue
            if progress.iteration is None:
                self._early = _newer(self._early, progress)
                continue
            progress = _newer(replace(self._early, iteration=progress.iteration), progress)
            self._seen, self._early = _newer(self._seen, progress), Progress()
            # A loss ends what is known of a step.
            if self._is_due(has_loss=progress.loss is not None):
                found.append(self._line())
        return found

    @property
    def iteration(self) -> int | None:
        """The last step that was reported."""
        return self._seen.iteration

    def last(self) -> list[str]:
        """Return the line of the last step, if it has none yet."""
        return [self._line()] if (self._seen.iteration or -1) > self._written else []

    def _is_due(self, has_loss: bool) -> bool:
        iteration = self._seen.iteration
        if iteration is None or (iteration <= self._written and not has_loss):
            return False
        if self._clock is None:
            return True
        if iteration < self._written:
            return False
        every_s = _BETWEEN_LOSSES_S if self._has_loss else _EVERY_S
        self._has_loss = self._has_loss or has_loss
        return has_loss or self._written_at is None or self._clock() - self._written_at >= every_s

    def _line(self) -> str:
        seen = self._seen
        assert seen.iteration is not None
        seconds, at = seen.seconds_per_iteration, self._clock() if self._clock else None
        if seconds is None and at is not None and self._written_at is not None and seen.iteration > self._written:
            self._seconds = (at - self._written_at) / (seen.iteration - self._written)
        self._written, self._written_at = seen.iteration, at
        return write_training_line(
            TrainingLine(
                iteration=seen.iteration,
                total_iterations=self._total or seen.total_iterations or 0,
                consumed_samples=seen.iteration * self._batch if self._batch else None,
                seconds_per_iteration=seconds or self._seconds,
                learning_rate=seen.learning_rate,
                global_batch_size=self._batch,
                loss=seen.loss,
                grad_norm=seen.grad_norm,
                nan_iterations=None if seen.loss is None else int(not math.isfinite(seen.loss)),
            )
        )


def _newer(before: Progress, found: Progress) -> Progress:
    """Return `found`, with the values of `before` that it lacks and that hold for longer than a step."""
    same_step = found.iteration is None or found.iteration == before.iteration
    return Progress(
        iteration=before.iteration if found.iteration is None else found.iteration,
        total_iterations=found.total_iterations or before.total_iterations,
        loss=found.loss if found.loss is not None or not same_step else before.loss,
        learning_rate=before.learning_rate if found.learning_rate is None else found.learning_rate,
        grad_norm=found.grad_norm if found.grad_norm is not None or not same_step else before.grad_norm,
        seconds_per_iteration=found.seconds_per_iteration or before.seconds_per_iteration,
    )
