"""A training's course as its log tells it: columns of numbers along the iterations, starts, evaluations, marks.

An iteration that was done again counts as it was done last: a line whose number falls back takes those from it on away.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from math import isfinite
from typing import Any

from opsctl.monitoring.series import excursions_of
from opsctl.run.logs.lines import AttemptStart
from opsctl.run.logs.reader import Found
from opsctl.run.logs.records import Alert, Pulse, Setting, SkippedRange
from opsctl.ui.report.rows import Rows, Superseded
from trainer.formats.logs.guard_lines import Left, NotRolledBack, Reason, RolledBack, RunAgain, Unusual
from trainer.formats.logs.log_lines import (
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    Evaluation,
    FreshStart,
    Stamp,
)
from trainer.formats.logs.training_line import AlikeLines, TrainingLine

#: Kinds of marks.
START, SPIKE, SKIP, KILL, SAVE, REVISION, ALERT = "start", "spike", "skip", "kill", "checkpoint", "revision", "alert"
_NAN = math.nan
_BEGINS = "before the start of training"
#: No clock goes beyond the last year of the calendar, whatever a line says an iteration took.
LATEST_S = 253_402_214_400.0


@dataclass(frozen=True)
class Mark:
    """Something that happened."""

    kind: str
    iteration: int  # the last one before it, or the one that it is about
    text: str
    at_s: float | None = None  # since the epoch, by the course's clock


def _spikes(rows: Rows) -> list[Mark]:
    """Return the excursions of the loss in consecutive rows, as marks."""
    iterations, times = rows.column("iteration"), rows.column("at_s")
    found = []
    for one in excursions_of(iterations, [loss if isfinite(loss) else None for loss in rows.column("loss")]):
        words = f"loss {one.peak:.3g} from {one.usual:.3g}, over {one.last - one.first + 1} lines"
        moment = times[one.first]
        found.append(Mark(SPIKE, int(iterations[one.first]), words, None if math.isnan(moment) else moment))
    return found


@dataclass
class Start:
    """A program that trained for a while."""

    name: str  # as "attempt 3, job 77_2"; empty where the log does not say
    at_s: float | None
    nodes: tuple[str, ...] = ()
    first: int | None = None  # iterations that its lines tell
    last: int | None = None
    redone: int = 0  # iterations of those before it that it did again
    ended: str = ""  # how, in the log's words

    @property
    def has_trained(self) -> bool:
        """Return whether it logged an iteration."""
        return self.first is not None


@dataclass
class Course:
    """The curves from the records so far. A number missing in its line is NaN."""

    rows: Rows = field(default_factory=Rows)
    superseded: list[Superseded] = field(default_factory=list)  # what was done again, in the log's order
    evaluations: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # by group, with the iteration
    starts: list[Start] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    total_iterations: int = 0
    world_size: int | None = None  # this and `nodes` of the newest start, as far as it says
    nodes: int | None = None
    clock_s: float | None = None  # of the newest record, as far as anything tells
    has_zone: bool = False  # whether the clock is the world's, not just the log's own
    revision: str = ""
    is_local: bool = False  # moments without a zone are this machine's
    is_told: bool = False  # whether any moment was
    zone: tzinfo | None = None  # of the newest moment that has one
    left_out_to: int = 0  # the newest iteration that was left out on request since a start or a rollback
    goes_on_from: int | None = None  # the iteration that was loaded or gone back to since the newest line
    is_rolled_back: bool = False  # within a start, which goes on

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> array[float]:
        """Return one of `rows.COLUMNS`, along the iterations."""
        return self.rows.column(name)

    def newest(self, name: str) -> float:
        """Return the last value of a column. Needs one line."""
        return self.rows.newest(name)

    @property
    def last_iteration(self) -> int:
        """The newest iteration; 0 before the first."""
        return int(self.rows.newest("iteration")) if len(self.rows) else 0

    @property
    def lines(self) -> int:
        """The number of iteration lines that count."""
        return self.rows.lines

    def spikes(self) -> list[Mark]:
        """Return the excursions of the loss, computed from it; none for a log with the spike guard's own lines."""
        return [] if any(mark.kind == SPIKE for mark in self.marks) else _spikes(self.rows)

    def take(self, record: Found) -> None:
        """Add the record of a line, or of many that look alike."""
        if isinstance(record, TrainingLine):
            self._iteration(record)
        elif isinstance(record, AlikeLines):
            self._alike(record)
        elif isinstance(record, Evaluation):
            group = record.group if record.data == "val" else f"{record.group} ({record.data})"
            self.evaluations.setdefault(group, []).append((record.iteration or self.last_iteration, record.loss))
        elif isinstance(record, AttemptStart):
            self._attempt(record)
        elif isinstance(record, Setting):
            self.world_size = record.world_size or self.world_size
        else:
            self._happening(record)

    def _iteration(self, line: TrainingLine) -> None:
        self.total_iterations = line.total_iterations or self.total_iterations
        if line.skipped_on_request:
            self._mark(SKIP, line.iteration, f"{line.skipped_on_request} iterations left out on request")
        if line.is_left_out:
            self.left_out_to = line.iteration
            return
        if self._is_said_again(line):
            self.rows.fill({"loss": line.loss, "grad_norm": line.grad_norm, "learning_rate": line.learning_rate})
            return
        before = self.last_iteration
        start = self._start_of(line)
        if line.iteration <= before:
            start.redone += self._cut(self._first_again(line.iteration))
            before = self.last_iteration
        self.goes_on_from, self.is_rolled_back = None, False
        start.first = line.iteration if start.first is None else start.first
        start.last = line.iteration
        trained = self._trained(line, before)
        at = [] if line.logged_at is None else [line.logged_at]
        self._ticks(at, [line.seconds_per_iteration], [trained if before else 1])
        speed = self._tokens_per_second(
            *(line.samples_per_second, line.global_batch_size, line.seconds_per_iteration),
            *(line.tokens_per_second_per_gpu, line.consumed_samples, line.consumed_tokens),
            *((self.newest("samples"), self.newest("tokens")) if before else (None, None)),
        )
        tflops = line.tflops if line.tflops is not None else line.model_tflops
        values = (
            *(line.iteration, line.consumed_samples, line.consumed_tokens, self.clock_s),
            *(line.loss, line.learning_rate, line.global_batch_size, line.grad_norm),
            *(tflops, line.mfu_percent, speed, line.seconds_per_iteration),
            *(line.model_tflops, trained, self.world_size, self.nodes),
        )
        self.rows.add(values)

    def _alike(self, found: AlikeLines) -> None:
        """Add lines: each by itself, or all after the first at once where each only continues the one before."""
        columns = found.columns
        iterations = columns["iteration"]
        is_simple = all(map(operator.lt, iterations, iterations[1:])) and iterations[0] > self.left_out_to
        if not is_simple or any(columns.get("skipped_on_request", ())) or None in columns.get("logged_at", ()):
            for line in found.lines():
                self._iteration(line)
            return
        self._iteration(next(found.lines()))
        count = len(iterations) - 1
        if count == 0:
            return
        trained = [*map(operator.sub, iterations[1:], iterations)]
        unknown: list[float | None] = [None] * count

        def column(name: str) -> Sequence[float | None]:
            return columns[name][1:] if name in columns else unknown

        both_tflops = zip(column("tflops"), column("model_tflops"), strict=True)
        self.rows.add_columns(
            (
                *(iterations[1:], column("consumed_samples"), column("consumed_tokens")),
                self._ticks(columns.get("logged_at", ())[1:], column("seconds_per_iteration"), trained),
                *map(column, ("loss", "learning_rate", "global_batch_size", "grad_norm")),
                [model if tflops is None else tflops for tflops, model in both_tflops],
                *(column("mfu_percent"), self._speeds(columns), column("seconds_per_iteration")),
                *(column("model_tflops"), trained, [self.world_size] * count, [self.nodes] * count),
            ),
            count,
        )
        self.total_iterations = columns["total_iterations"][-1] or self.total_iterations
        self.starts[-1].last = iterations[-1]

    def _ticks(
        self, moments: Sequence[datetime], seconds: Sequence[float | None], iterations: Sequence[int]
    ) -> list[float | None]:
        """Return the clock at each of these lines, whose `moments` may not be known, and set it to the last."""
        times: list[float | None] = []
        for moment in moments:
            self._clock(moment)
            times.append(self.clock_s)
        if not moments:
            for each_s, count in zip(seconds, iterations, strict=True):
                if each_s is not None and isfinite(each_s):
                    self.clock_s = min(LATEST_S, (self.clock_s or 0.0) + max(0.0, each_s) * count)
                times.append(self.clock_s)
        return times

    def _speeds(self, columns: Mapping[str, Sequence[Any]]) -> list[float]:
        """Return the tokens per second of each line but the first, which is the newest row."""
        unknown = [None] * len(columns["iteration"])
        names = ("samples_per_second", "global_batch_size", "seconds_per_iteration", "tokens_per_second_per_gpu")
        known = (columns.get(name, unknown)[1:] for name in names)
        samples, tokens = (columns.get(name, unknown)[1:] for name in ("consumed_samples", "consumed_tokens"))
        before = (self.newest("samples"), *samples), (self.newest("tokens"), *tokens)
        return [*map(self._tokens_per_second, *known, samples, tokens, *before)]

    def _trained(self, line: TrainingLine, before: int) -> int:
        """Return how many iterations since the previous line it covers, without those skipped on request."""
        since = max(before, self.left_out_to) if self.left_out_to < line.iteration else before
        return max(1, line.iteration - since - (line.skipped_on_request or 0))

    def _is_said_again(self, line: TrainingLine) -> bool:
        """Return whether it repeats the newest line: from another rank, or a second writer."""
        if not self.starts or self.starts[-1].last != line.iteration or self.is_rolled_back:
            return False
        samples = self.newest("samples")
        return line.consumed_samples == (None if math.isnan(samples) else int(samples))

    def _first_again(self, iteration: int) -> int:
        """Return the first iteration that was repeated; the log may have only one line in ten."""
        return iteration if self.goes_on_from is None else min(iteration, self.goes_on_from + 1)

    def _start_of(self, line: TrainingLine) -> Start:
        """Return the start of an iteration: the newest, or one that only the number shows."""
        newest = self.starts[-1] if self.starts else None
        is_behind = newest is not None and newest.last is not None and line.iteration < newest.last
        if newest is None or (is_behind and not self.is_rolled_back):
            newest = Start("", self.clock_s)
            self.starts.append(newest)
            if len(self.rows):
                self._mark(START, line.iteration, f"started again at iteration {line.iteration:,}")
        return newest

    def _cut(self, iteration: int) -> int:
        """Set `iteration` and all after it aside; how many iterations that were."""
        last = self.last_iteration
        gone = Superseded(iteration, last, self.rows.cut(iteration))
        self.superseded.append(gone)
        for group, points in self.evaluations.items():
            self.evaluations[group] = [point for point in points if point[0] < iteration]
        return gone.iterations

    def _tokens_per_second(
        self,
        samples_per_second: float | None,
        batch: int | None,
        seconds: float | None,
        each_gpu: float | None,
        samples: int | None,
        tokens: int | None,
        samples_before: float | None,
        tokens_before: float | None,
    ) -> float:
        """Return the tokens per second of a line; `samples_before` and `tokens_before` are of the previous line."""
        if tokens and samples:
            rate = samples_per_second or (batch / seconds if batch and seconds else None)
            if rate is not None:
                # Sequences may have become longer.
                if (
                    samples_before is not None
                    and tokens_before is not None
                    and samples > samples_before
                    and tokens >= tokens_before
                ):
                    return rate * (tokens - tokens_before) / (samples - samples_before)
                return rate * tokens / samples
        return each_gpu * self.world_size if each_gpu is not None and self.world_size else _NAN

    def _attempt(self, record: AttemptStart) -> None:
        self._clock(record.at)
        self.goes_on_from, self.is_rolled_back, self.left_out_to = record.iteration, False, 0
        self.world_size, self.nodes = None, len(record.nodes) or None
        name = f"attempt {record.attempt}, job {record.job}"
        self.starts.append(Start(name, self.clock_s, record.nodes))
        where = f" on {len(record.nodes)} node{'s' * (len(record.nodes) > 1)}" if record.nodes else ""
        self._mark(START, record.iteration or 0, f"{name}{where}")
        if record.revision and self.revision and record.revision != self.revision:
            self._mark(REVISION, record.iteration or 0, f"revision {record.revision}")
        self.revision = record.revision or self.revision

    def _happening(self, record: Found) -> None:
        at = self.last_iteration
        if isinstance(record, CheckpointLoaded | FreshStart):
            self.goes_on_from = record.iteration if isinstance(record, CheckpointLoaded) else 0
            self.left_out_to = 0
            self._other_start(self.goes_on_from)
        elif isinstance(record, Stamp):
            self._clock(record.at)
            if _BEGINS in record.what:
                self._other_start(at)
        elif isinstance(record, Left):
            self._left(record)
        elif isinstance(record, CheckpointSaved):
            self._mark(SAVE, record.iteration, f"checkpoint {record.iteration:,}")
        elif isinstance(record, CheckpointFailed):
            self._mark(ALERT, record.iteration, f"save failed: {record.why}")
        elif isinstance(record, Unusual):
            words = f"unusual: loss {record.loss:.4g}, gradient norm {record.grad_norm:.4g}: {record.done}"
            self._mark(SPIKE, record.iteration, words)
        elif isinstance(record, RunAgain):
            self._mark(SPIKE, record.iteration, f"run again: {record.found}: {record.why}")
        elif isinstance(record, RolledBack):
            words = (
                f"rolled back from {record.iteration:,} to {record.to:,}, {record.first:,} to {record.last:,} left out"
            )
            self._mark(SKIP, record.to, f"{words}: {record.why}")
            self.goes_on_from, self.is_rolled_back, self.left_out_to = record.to, True, 0
        elif isinstance(record, NotRolledBack):
            self._mark(SPIKE, record.iteration, f"no rollback: {record.why}")
        elif isinstance(record, SkippedRange):
            self._mark(SKIP, record.first, f"iterations {record.first:,} to {record.last:,} left out")
        elif isinstance(record, Alert):
            self._clock(record.at)
            self._mark(ALERT, at, record.text)
        elif isinstance(record, Pulse):
            self._clock(record.at)

    def _other_start(self, iteration: int) -> None:
        """Add a start of a program that prints nothing else about it: several lines may belong to one start."""
        newest = self.starts[-1] if self.starts else None
        if newest is not None and not newest.has_trained:
            return
        self.starts.append(Start("", self.clock_s))
        self._mark(START, iteration, f"started from iteration {iteration:,}" if iteration else "started")

    def _left(self, record: Left) -> None:
        if record.at is not None:
            self._clock(record.at)
        words = str(record.reason)
        if self.starts and not self.starts[-1].ended:
            self.starts[-1].ended = words
        if record.reason is Reason.KILL_SWITCH:
            self._mark(KILL, self.last_iteration, "left at the kill switch")

    def _clock(self, moment: datetime | None) -> None:
        """Set the clock; a time without a zone is read as UTC, so that differences are right."""
        if moment is None:
            return
        if moment.tzinfo is None:
            moment = moment.astimezone() if self.is_local else moment.replace(tzinfo=self.zone or UTC)
            is_zoned = self.is_local
        else:
            self.zone, is_zoned = moment.tzinfo, True
        given_s = moment.timestamp()
        if self.clock_s is not None and not self.is_told:
            # So far it was the time that was trained: that ends now.
            self._shift(given_s - self.clock_s)
        elif is_zoned and self.is_told and not self.has_zone:
            # The moments before it were of the same clock on the wall.
            offset = moment.utcoffset()
            self._shift(-offset.total_seconds() if offset is not None else 0.0)
        self.is_told, self.has_zone = True, self.has_zone or is_zoned
        # Logs of several writers are not in order to the second; time goes on.
        self.clock_s = given_s if self.clock_s is None else max(self.clock_s, given_s)

    def _shift(self, by_s: float) -> None:
        """Move all times that were taken so far."""
        for rows in (self.rows, *(one.rows for one in self.superseded)):
            rows.shift(by_s)
        for start in self.starts:
            start.at_s = None if start.at_s is None else start.at_s + by_s
        self.marks = [one if one.at_s is None else replace(one, at_s=one.at_s + by_s) for one in self.marks]
        self.clock_s = None if self.clock_s is None else self.clock_s + by_s

    def _mark(self, kind: str, iteration: int, text: str) -> None:
        newest = self.marks[-1] if self.marks else None
        if newest is not None and (newest.kind, newest.iteration, newest.text) == (kind, iteration, text):
            return  # several ranks say it
        self.marks.append(Mark(kind, iteration, text, self.clock_s))
