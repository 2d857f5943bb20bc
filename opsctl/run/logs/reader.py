"""Parse a whole log of any program from beginning to end into records, in one pass that can be interrupted.

`LogReader` is the state between two lines. It is small and can be stored as JSON: with the position it allows to resume
later.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from opsctl.run.logs import lines
from opsctl.run.logs.line_text import LONGEST_LINE_BYTES, having, text_of, without_nuls
from opsctl.run.logs.lines import (
    AttemptStart,
    closed,
    layout_of,
    parse_attempt_start,
    parse_line,
    split_prefix,
)
from opsctl.run.logs.records import Record, SaveEnded, Setting
from trainer.formats.logs import guard_lines, log_lines
from trainer.formats.logs.log_lines import CheckpointSaved
from trainer.formats.logs.training_line import AlikeLines, TrainingLine

_ITERATION = b"iteration"
#: Every line with a record has this, or one of these.
_MARKS = (
    *(*log_lines.MARKS, *guard_lines.MARKS, *lines.ATTEMPT_MARKS, *lines.OTHER_MARKS),
    *(b"PULSE: ", b"ALERT: ", b"xiting", b"etected"),
)
_has_mark = having(_MARKS)
#: A page or a mail may break a line into up to this many pieces.
_MOST_PIECES = 8
#: The last part in every Megatron's line: a line with it that ends like a part is complete.
_LAST_PART = "number of nan iterations"

Found = Record | AttemptStart


class LogReader(msgspec.Struct, kw_only=True):
    """The state of reading a log between two lines."""

    setting: Setting = Setting()  # of the newest start
    example: str = ""  # the newest iteration's line: most look like the one before
    begun: str = ""  # a line of an iteration that may continue in the next line
    pieces: int = 0  # number of lines in `begun`
    rank: int | None = None  # the rank whose lines count, if each rank prints them
    step: int = 0  # the newest step of a line without a duration
    step_at: datetime | None = None
    iteration: int = 0  # the newest

    def feed(self, data: bytes) -> Iterator[Found]:
        """Yield the records that are complete with `data`, which must be whole lines."""
        for found in self.feed_columns(data):
            if isinstance(found, AlikeLines):
                yield from found.lines()
            else:
                yield found

    def feed_columns(self, data: bytes) -> Iterator[Found | AlikeLines]:
        """Yield the same, with consecutive training lines of one layout as columns. This is several times faster."""
        at, data = 0, without_nuls(data)
        while at < len(data):
            alike, at = layout_of(self.example).read(data, at) if self.example else (None, at)
            if alike is not None:
                yield from self._ended()
                yield self._with_tokens(alike)
                continue
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            line = data[at : min(end, at + LONGEST_LINE_BYTES)]
            at = end + 1
            if self.begun or _ITERATION in line or _has_mark(line):
                yield from self._line(text_of(line))

    def rest(self) -> Iterator[Found]:
        """Yield the record of `begun` without waiting for more: at the end of a log, or to show the newest one."""
        record = parse_line(closed(self.begun) if self.pieces > 1 else self.begun) if self.begun else None
        if record is not None:
            yield self._with_what_is_known(record)

    def _line(self, text: str) -> Iterator[Found]:
        if self.begun:
            joined = self._joined(text)
            if joined:
                self.begun, self.pieces = joined, self.pieces + 1
                if self.pieces == _MOST_PIECES:
                    yield from self._ended()
                return
            yield from self._ended()
        rank, rest = split_prefix(text)
        start = parse_attempt_start(rest)
        record = start or parse_line(text)
        if record is None or self._is_another_ranks(record, rank):
            return
        if isinstance(record, TrainingLine) and record.total_iterations:
            # Even if it looks complete, it may be broken exactly there.
            self.begun, self.pieces = text, 1
            return
        yield self._with_what_is_known(record)

    def _ended(self) -> Iterator[Found]:
        yield from self.rest()
        if self._is_whole(self.begun):
            self.example = self.begun
        self.begun, self.pieces = "", 0

    def _joined(self, text: str) -> str:
        """Return `begun` joined with `text` if that is a more complete line; else nothing."""
        if not text.strip() or len(self.begun) + len(text) > LONGEST_LINE_BYTES or parse_line(text) is not None:
            return ""
        # A break may have removed a blank, or may be between two letters.
        best = max((f"{self.begun}{between}{text}" for between in ("", " ")), key=_parts_known)
        if self._is_whole(self.begun):
            # Only more parts count: another program's line may have longer numbers in the same parts.
            return best if _parts_known(best)[0] > _parts_known(self.begun)[0] else ""
        return best if _parts_known(best) > _parts_known(self.begun) else ""

    @staticmethod
    def _is_whole(text: str) -> bool:
        return text.rstrip().endswith("|") and (_LAST_PART in text or "iteration=" in text)

    def _is_another_ranks(self, record: Found, rank: int | None) -> bool:
        """Return True for the line of another rank, in a program whose ranks all print their lines."""
        if rank is None or not (isinstance(record, TrainingLine) and record.total_iterations == 0):
            return False
        if self.rank is None:
            self.rank = rank
        return rank != self.rank

    def _with_what_is_known(self, record: Found) -> Found:
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

    def _with_tokens(self, alike: AlikeLines) -> AlikeLines:
        columns, length = alike.columns, self.setting.sequence_length
        self.iteration = columns["iteration"][-1]
        if "consumed_tokens" not in columns and "consumed_samples" in columns and length:
            columns["consumed_tokens"] = [samples * length for samples in columns["consumed_samples"]]
        return alike

    def _step(self, line: TrainingLine) -> TrainingLine:
        """Complete a step that has only a number and a time: derive samples and seconds from earlier lines."""
        known = self.setting
        batch = known.global_batch_size
        samples = line.iteration * batch if batch else None
        steps, before = line.iteration - self.step, self.step_at
        took_s = (line.logged_at - before).total_seconds() if before and line.logged_at else None
        each_s = took_s / steps if took_s is not None and took_s > 0 and steps > 0 else None
        self.step, self.step_at = line.iteration, line.logged_at
        return msgspec.structs.replace(
            line,
            total_iterations=known.total_iterations or 0,
            global_batch_size=batch,
            consumed_samples=samples,
            consumed_tokens=samples * known.sequence_length if samples and known.sequence_length else None,
            seconds_per_iteration=each_s,
            samples_per_second=batch / each_s if batch and each_s else None,
        )


def _parts_known(text: str) -> tuple[int, int]:
    """Return the number of a training line's own parts, and of their digits."""
    line = parse_line(text)
    if not isinstance(line, TrainingLine):
        return (0, 0)
    values = [getattr(line, name) for name in line.__struct_fields__ if name != "others"]
    known = [value for value in values if value is not None]
    return len(known), sum(len(str(value)) for value in known)
