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
from opsctl.run.logs import spans
from opsctl.run.logs.reader import Found, LogReader, Progress, digests, is_same
from opsctl.run.logs.spans import Span
from opsctl.ui.report.curves import Course
from trainer.formats.logs.training_line import AlikeLines


@dataclass
class LogSource:
    """One log. What was read of it once is not read again, unless it was cut or replaced."""

    path: Path
    open_log: Callable[[], int]  # raises OSError
    course: Course = field(default_factory=Course)
    spans: list[Span] = field(default_factory=list)
    _reader: LogReader = field(default_factory=LogReader)
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
        for found in self._reader.finish():
            self._keep(found)

    def _read(self, fd: int, progress: Progress | None) -> bool:
        is_new = self._told_by is not None and not is_same(fd, self._reader.at, self._told_by)
        if is_new:
            self.course, self.spans, self._reader = Course(is_local=self.is_local), [], LogReader()
        try:
            for found in self._reader.read_on(fd, progress):
                self._keep(found)
                is_new = True
            return is_new
        finally:
            self._told_by = digests(fd, self._reader.at)

    def _keep(self, found: Found | AlikeLines) -> None:
        if isinstance(found, AlikeLines):
            self.course.take_alike(found)
        else:
            self.course.take(found)
        spans.take(self.spans, found)


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
