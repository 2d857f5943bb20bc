"""Read a whole log of any program from beginning to end into records, in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from opsctl.run.logs import lines
from opsctl.run.logs.line_text import LONGEST_LINE_BYTES, blocks, having, text_of, without_nuls
from opsctl.run.logs.lines import AttemptStart, layout_of, parse_attempt_start, parse_line, split_prefix
from opsctl.run.logs.records import Record, SaveEnded, Setting
from opsctl.run.logs.spans import TIMERS
from trainer.formats.logs import guard_lines, log_lines
from trainer.formats.logs.log_lines import CheckpointSaved
from trainer.formats.logs.training_line import AlikeLines, Layout, TrainingLine

#: Every line with a record that matters here has one of these. Most logs have timers after each iteration, and only the
#: lines with the timers of `spans` matter.
_MARKS = (
    *(b"iteration", *(mark for mark in log_lines.MARKS if mark not in log_lines.TIMER_MARKS)),
    *(f"{name}:".encode() for name in TIMERS),
    *(*guard_lines.MARKS, *lines.ATTEMPT_MARKS, *lines.OTHER_MARKS),
    *(b"PULSE: ", b"ALERT: ", b"xiting", b"etected"),
)
_next_mark = having(_MARKS)
#: Layouts of training lines that are known at once, and the number of lines from which new ones are learned.
_LAYOUTS, _LEARNED_FROM = 8, 64

Found = Record | AttemptStart | AlikeLines
#: Receives the position that was read to, and the size of the log, in bytes.
Progress = Callable[[int, int], None]


@dataclass
class LogReader:
    """The state of reading a log between two lines."""

    setting: Setting = field(default_factory=Setting)  # of the newest start
    rank: int | None = None  # the rank whose lines count, if each rank prints them
    step: int = 0  # the newest step of a line without a duration
    step_at: datetime | None = None
    iteration: int = 0  # the newest
    _layouts: list[Layout] = field(default_factory=list)
    _learned_from: int = 0

    def read(self, fd: int, progress: Progress | None = None) -> Iterator[Found]:
        """Yield the records of an open log, also of a last line without an end. Raises OSError."""
        size_bytes, begun = os.fstat(fd).st_size, b""
        for at, data in blocks(fd, 0, size_bytes):
            whole, line_end, half = (begun + data).rpartition(b"\n")
            begun = half[:LONGEST_LINE_BYTES]
            yield from self.feed(whole + line_end)
            if progress is not None:
                progress(at, size_bytes)
        yield from self.feed(begun)

    def feed(self, data: bytes) -> Iterator[Found]:
        """Yield the records in `data`, which must be whole lines."""
        at, data = 0, without_nuls(data)
        while (at := _next_line(data, at)) < len(data):
            alike, at = self._alike(data, at)
            if alike is not None:
                yield alike
                continue
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            record = self._record(text_of(data[at : min(end, at + LONGEST_LINE_BYTES)]))
            at = end + 1
            if record is not None:
                yield record

    def _alike(self, data: bytes, at: int) -> tuple[AlikeLines | None, int]:
        for layout in self._layouts:
            alike, end = layout.read(data, at, _next_line)
            if alike is not None:
                return self._completed(alike), end
        return None, at

    def _record(self, text: str) -> Found | None:
        start = parse_attempt_start(split_prefix(text)[1]) if "START TIME: " in text else None
        record = start or parse_line(text)
        if record is None or self.is_another_ranks(record, text):
            return None
        if isinstance(record, TrainingLine) and self._learned_from < _LEARNED_FROM:
            self._learned_from += 1
            layout = layout_of(text)
            if layout is not None:
                self._layouts = [layout, *self._layouts][:_LAYOUTS]
        return self.completed(record)

    def is_another_ranks(self, record: Found, text: str) -> bool:
        """Return True for the line of another rank, in a program whose ranks all print their lines."""
        if not (isinstance(record, TrainingLine) and record.total_iterations == 0):
            return False
        rank = split_prefix(text)[0]
        if self.rank is None:
            self.rank = rank
        return rank is not None and rank != self.rank

    def completed(self, record: Found) -> Found:
        """Complete the record with earlier lines, and remember it for later ones."""
        if isinstance(record, Setting):
            known = {name: value for name in record.__struct_fields__ if (value := getattr(record, name)) is not None}
            self.setting = msgspec.structs.replace(self.setting, **known)
            if record.starts_at is not None:
                self.step, self.step_at = record.starts_at - 1, None
        elif isinstance(record, AttemptStart):
            self.step_at = None
        elif isinstance(record, SaveEnded):
            return CheckpointSaved(self.iteration, "")
        elif isinstance(record, TrainingLine):
            self.iteration = record.iteration
            return self._step(record) if record.total_iterations == 0 else self._tokens(record)
        return record

    def _tokens(self, line: TrainingLine) -> TrainingLine:
        """Compute tokens for older lines, which only have samples."""
        length = self.setting.sequence_length
        if line.consumed_tokens is not None or line.consumed_samples is None or not length:
            return line
        return msgspec.structs.replace(line, consumed_tokens=line.consumed_samples * length)

    def _completed(self, alike: AlikeLines) -> AlikeLines:
        columns, length = alike.columns, self.setting.sequence_length
        self.iteration = columns["iteration"][-1]
        if columns["total_iterations"][0] == 0:
            columns |= self._steps(columns["iteration"], columns["logged_at"])
        elif "consumed_tokens" not in columns and "consumed_samples" in columns and length:
            columns["consumed_tokens"] = [samples * length for samples in columns["consumed_samples"]]
        return alike

    def _step(self, line: TrainingLine) -> TrainingLine:
        """Complete a step that has only a number and a time."""
        if line.seconds_per_iteration is not None:  # of another program than torchtitan
            return line
        columns = self._steps([line.iteration], [line.logged_at])
        return msgspec.structs.replace(line, **{name: column[0] for name, column in columns.items()})

    def _steps(self, iterations: list[int], times: Sequence[datetime | None]) -> dict[str, list[Any]]:
        """Derive samples and seconds of steps, which have only a number and a time, from earlier lines."""
        batch, length = self.setting.global_batch_size, self.setting.sequence_length
        columns: dict[str, list[Any]] = {
            "total_iterations": [self.setting.total_iterations or 0] * len(iterations),
            "seconds_per_iteration": [],
        }
        for iteration, at in zip(iterations, times, strict=True):
            steps, before = iteration - self.step, self.step_at
            took_s = (at - before).total_seconds() if before and at else 0.0
            columns["seconds_per_iteration"].append(took_s / steps if took_s > 0 and steps > 0 else None)
            self.step, self.step_at = iteration, at
        if batch:
            columns["global_batch_size"] = [batch] * len(iterations)
            columns["consumed_samples"] = [iteration * batch for iteration in iterations]
            each_s = columns["seconds_per_iteration"]
            columns["samples_per_second"] = [batch / one if one else None for one in each_s]
        if batch and length:
            columns["consumed_tokens"] = [samples * length for samples in columns["consumed_samples"]]
        return columns


def _next_line(data: bytes, at: int) -> int:
    """Return the beginning of the next line with a mark, from the beginning `at` of a line on; the end without one."""
    mark = _next_mark(data, at)
    return len(data) if mark is None else data.rfind(b"\n", at, mark.start()) + 1 or at
