"""The simulated training log: text as the trainer prints it, and its reading by what reads the real one."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta

import msgspec

from opsctl.run.logs.lines import parse_lines
from opsctl.run.logs.measurements import WINDOW, Series, measure, series_of
from opsctl.run.logs.records import Measured, Record
from trainer.formats.logs.guard_lines import GuardLine
from trainer.formats.logs.training_line import TrainingLine

#: When every simulated world begins.
BEGINNING = datetime(2022, 3, 1, tzinfo=UTC)


def moment(seconds: float) -> datetime:
    """`seconds` after the beginning."""
    return BEGINNING + timedelta(seconds=seconds)


class Log:
    """Lines with the time at which they were written, read once each.

    The product reads a file backwards until it has seen as many iterations as it needs. Here the records of what was
    read before are kept, as many as that would be: the same records, at a tenth of the cost.
    """

    def __init__(self, lines_of_series: int) -> None:
        self._unread: deque[tuple[float, str]] = deque()
        self._records: deque[Record] = deque()
        self._iterations = 0  # training lines among them
        self._series: deque[Record] = deque()  # training lines and what the guard said among them
        self._lines_of_series, self._lines = lines_of_series, 0
        self._last_text = ""
        self.written_at: datetime | None = None  # of the last line that a reader can see
        self.text: list[str] | None = None  # all that was read, where a user wants to compare

    def write(self, at: float, text: str) -> None:
        """Append one or more lines."""
        self._unread.append((at, text))

    def read(self, now: float, late_s: float) -> None:
        """Take in what a reader sees who, on a network file system, sees what is written `late_s` later."""
        fresh: list[str] = []
        while self._unread and self._unread[0][0] <= now - late_s:
            at, text = self._unread.popleft()
            fresh += text.split("\n")
            self.written_at = moment(at)
        if not fresh:
            return
        if self.text is not None:
            self.text += fresh
        self._last_text = fresh[-1]
        for record in parse_lines(fresh):
            self._records.append(record)
            if isinstance(record, TrainingLine):
                self._iterations += 1
            self._keep(record)
        # As far back as `recent` reads: to the line of the iteration that is so many from the end.
        while self._iterations > WINDOW + 1:
            self._iterations -= isinstance(self._records.popleft(), TrainingLine)
        while self._iterations == WINDOW + 1 and not isinstance(self._records[0], TrainingLine):
            self._records.popleft()

    def _keep(self, record: Record) -> None:
        """For the series: back to the training line that is so many from the end."""
        if isinstance(record, TrainingLine):
            self._lines += 1
        elif not isinstance(record, GuardLine):
            return
        self._series.append(record)
        while self._lines > self._lines_of_series or (
            self._lines == self._lines_of_series and not isinstance(self._series[0], TrainingLine)
        ):
            self._lines -= isinstance(self._series.popleft(), TrainingLine)

    def measured(self) -> Measured:
        """As `opsctl.run.logs.measurements.recent` finds it in the file."""
        found = measure(self._records)
        if found.last_iteration is None:
            return found
        is_followed = not any(isinstance(one, TrainingLine) for one in parse_lines([self._last_text]))
        return msgspec.structs.replace(found, is_followed=is_followed)

    def series(self) -> Series:
        """The newest training lines, oldest first, and what the guard said among them."""
        return series_of(self._series)
