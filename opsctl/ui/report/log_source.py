"""A log that is read on as it grows: its course, and of our own logs each attempt's part of the time."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.trusted import open_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.index import digests, is_same
from opsctl.run.logs.line_text import LONGEST_LINE_BYTES, blocks
from opsctl.run.logs.lines import AttemptStart
from opsctl.run.logs.reader import Found, LogReader
from opsctl.run.logs.spans import Span
from opsctl.ui.report.curves import Course
from trainer.formats.logs.training_line import AlikeLines

#: Receives the position that was read to, and the size of the log, in bytes.
Progress = Callable[[int, int], None]


@dataclass
class LogSource:
    """One log. What was read of it once is not read again, unless it was cut or replaced."""

    path: Path
    open_log: Callable[[], int]  # raises OSError
    course: Course = field(default_factory=Course)
    spans: list[Span] = field(default_factory=list)
    _reader: LogReader = field(default_factory=LogReader)
    _at: int = 0
    _half: bytes = b""  # of a line without its end
    is_local: bool = False  # written on this cluster: moments without a zone are local
    _told_by: tuple[str, str] | None = None  # what was read, by its digests

    def look(self, progress: Progress | None = None) -> bool:
        """Read the new part of the log, and return whether there is one.

        Raises FileNotFoundError, and OpsctlError for any other problem.
        """
        try:
            fd = self.open_log()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unreadable(error) from None
        try:
            return self._read(fd, progress)
        except OSError as error:  # what was read stays; the next read continues there
            raise self._unreadable(error) from None
        finally:
            os.close(fd)

    def _unreadable(self, error: OSError) -> OpsctlError:
        return OpsctlError(f"{self.path}: cannot read the log: {file_problem(error)}")

    def finish(self) -> None:
        """Take a last line without an end as a whole line, since it is not read again."""
        if self._half:
            self._take(self._half + b"\n")
            self._half = b""
        for record in self._reader.rest():
            self._keep(record)

    def _read(self, fd: int, progress: Progress | None) -> bool:
        is_new = self._told_by is not None and not is_same(fd, self._at, self._told_by)
        if self._told_by is None or is_new:
            self.course, self.spans, self._reader = Course(is_local=self.is_local), [], LogReader()
            self._at, self._half, self._told_by = 0, b"", None
        try:
            return self._read_on(fd, progress) or is_new
        finally:
            self._told_by = digests(fd, self._at)

    def _read_on(self, fd: int, progress: Progress | None) -> bool:
        is_new, size_bytes = False, os.fstat(fd).st_size
        for at, data in blocks(fd, self._at, size_bytes):
            self._at = at
            if progress is not None:
                progress(at, size_bytes)
            whole, line_end, half = data.rpartition(b"\n")
            if not line_end:
                self._half = (self._half + data)[:LONGEST_LINE_BYTES]
                continue
            self._take(self._half + whole + b"\n")
            self._half = half[:LONGEST_LINE_BYTES]
            is_new = True
        return is_new

    def _take(self, data: bytes) -> None:
        for record in self._reader.feed_columns(data):
            if isinstance(record, AlikeLines):
                self.course.take_alike(record)
                if self.spans:
                    self.spans[-1].take_alike(record)
            else:
                self._keep(record)

    def _keep(self, record: Found) -> None:
        self.course.take(record)
        if isinstance(record, AttemptStart):
            self.spans.append(Span(record.attempt, record.job_id, record.at, record.iteration or 0))
        elif self.spans:
            self.spans[-1].take(record)


def log_of_run(paths: RunPaths) -> LogSource:
    """Return the run's training log, which must belong to the run's owner or its group."""
    return LogSource(paths.main_log, lambda: open_file(paths.output, paths.main_log), is_local=True)


def log_named(path: Path) -> LogSource:
    """Return a log that the user names: any regular file."""
    return LogSource(path, lambda: _opened(path))


def _opened(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a FIFO would hang
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OpsctlError(f"{path}: not a plain file: name a training's log")
    return fd
