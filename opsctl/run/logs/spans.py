"""Read the time of each attempt from a whole training log: start, iterations, evaluations and saves.

Reads the log once from its beginning, and keeps two numbers for each line of iterations.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from opsctl.core.files.trusted import opened_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.lines import AttemptStart
from opsctl.run.logs.reader import Found, LogReader
from opsctl.run.logs.records import Record
from trainer.formats.logs.log_lines import SAVE_TIMER, Stamp, Timers
from trainer.formats.logs.training_line import AlikeLines, TrainingLine

#: Timers of evaluations, ours and the original's.
EVALUATION_TIMERS = ("evaluation", "evaluate", "eval-time")
_TRAINS = "before the start of training"


@dataclass
class Span:
    """One attempt's part of the log, with durations by the trainer."""

    attempt: int  # its number
    job_id: int
    started_at: datetime | None  # according to the job
    begins_at: int  # the iteration that it resumes from
    trains_from: datetime | None = None  # time at which it was ready to iterate
    iterations: array[int] = field(default_factory=lambda: array("q"))  # of each line
    seconds: array[float] = field(default_factory=lambda: array("d"))  # total of each line's iterations
    evaluations_s: list[float] = field(default_factory=list)
    saves_s: list[float] = field(default_factory=list)  # time that each save stopped the training

    def take_alike(self, alike: AlikeLines) -> None:
        """Add training lines that are given as columns."""
        if "seconds_per_iteration" in alike.columns:
            self._add(alike.columns["iteration"], alike.columns["seconds_per_iteration"])

    def take(self, record: Record) -> None:
        """Add the record of a line."""
        if isinstance(record, TrainingLine):
            if record.seconds_per_iteration is not None:
                self._add((record.iteration,), (record.seconds_per_iteration,))
        elif isinstance(record, Timers):
            known = record.milliseconds
            self.saves_s += [known[SAVE_TIMER] / 1000] if SAVE_TIMER in known else []
            self.evaluations_s += [known[name] / 1000 for name in EVALUATION_TIMERS if name in known]
        elif isinstance(record, Stamp) and _TRAINS in record.what and record.at.tzinfo is not None:
            self.trains_from = self.trains_from or record.at

    def _add(self, iterations: Sequence[int], seconds_each: Sequence[float]) -> None:
        before = self.iterations[-1] if self.iterations else self.begins_at
        for iteration, seconds in zip(iterations, seconds_each, strict=True):
            if iteration > before:
                self.iterations.append(iteration)
                self.seconds.append(seconds * (iteration - before))
                before = iteration


def read_spans(paths: RunPaths) -> list[Span]:
    """Return the attempts in the run's training log, in order; empty without a log. Raises OSError."""
    spans: list[Span] = []
    with contextlib.suppress(FileNotFoundError), opened_file(paths.output, paths.main_log) as fd:
        for found in LogReader().read(fd):
            take(spans, found)
    return spans


def take(spans: list[Span], found: Found | AlikeLines) -> None:
    """Add the next record of a log. Records before the first attempt belong to no span."""
    if isinstance(found, AttemptStart):
        spans.append(Span(found.attempt, found.job_id, found.at, found.iteration or 0))
    elif spans and isinstance(found, AlikeLines):
        spans[-1].take_alike(found)
    elif spans and not isinstance(found, AlikeLines):
        spans[-1].take(found)
