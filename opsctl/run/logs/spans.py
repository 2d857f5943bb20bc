"""Read the time of each attempt from a whole training log: start, iterations, evaluations and saves.

Reads the log once from its beginning, and keeps two numbers for each line of iterations.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from opsctl.core.files.trusted import opened_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.lines import AttemptStart
from opsctl.run.logs.records import Record
from trainer.formats.logs.log_lines import SAVE_TIMER, CheckpointSaved, Stamp, Timers
from trainer.formats.logs.training_line import AlikeLines, TrainingLine

if TYPE_CHECKING:
    from opsctl.run.logs.reader import Found, Progress

#: Timers of evaluations, ours and the original's.
EVALUATION_TIMERS = ("evaluation", "evaluate", "eval-time")
#: The timers that are read.
TIMERS = (SAVE_TIMER, *EVALUATION_TIMERS)
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

    def take(self, record: Record | AlikeLines) -> None:
        """Add the record of a line, or those of many."""
        if isinstance(record, TrainingLine):
            self._trained([record.iteration], [record.seconds_per_iteration])
        elif isinstance(record, AlikeLines):
            self._trained(record.columns["iteration"], record.columns.get("seconds_per_iteration", ()))
        elif isinstance(record, Timers):
            known = record.milliseconds
            self.saves_s += [known[SAVE_TIMER] / 1000] if SAVE_TIMER in known else []
            self.evaluations_s += [known[name] / 1000 for name in EVALUATION_TIMERS if name in known]
        elif isinstance(record, Stamp) and _TRAINS in record.what and record.at.tzinfo is not None:
            self.trains_from = self.trains_from or record.at
        elif isinstance(record, CheckpointSaved) and self.trains_from is None:  # what was in memory
            self.begins_at = record.iteration

    def _trained(self, iterations: Sequence[int], seconds: Sequence[float | None]) -> None:
        for iteration, each_s in zip(iterations, seconds, strict=False):
            before = self.iterations[-1] if self.iterations else self.begins_at
            if each_s is not None and iteration > before:
                self.iterations.append(iteration)
                self.seconds.append(each_s * (iteration - before))


def read_spans(paths: RunPaths, progress: Progress | None = None) -> list[Span]:
    """Return the attempts in the run's training log, in order; empty without a log. Raises OSError."""
    from opsctl.run.logs.reader import LogReader  # status reads no log for spans

    spans: list[Span] = []
    with contextlib.suppress(FileNotFoundError), opened_file(paths.output, paths.main_log) as fd:
        for found in LogReader().read(fd, progress):
            take(spans, found)
    return spans


def take(spans: list[Span], found: Found) -> None:
    """Add the next record of a log. Records before the first attempt belong to no span."""
    if isinstance(found, AttemptStart):
        spans.append(Span(found.attempt, found.job_id, found.at, found.iteration or 0))
    elif spans:
        spans[-1].take(found)
