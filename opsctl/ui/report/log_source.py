"""A log read as a whole: its course, and of our own logs each attempt's part of the time."""

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
from opsctl.run.logs.reader import LogReader, Progress
from opsctl.run.logs.spans import Span
from opsctl.ui.report.curves import Course


@dataclass
class LogSource:
    """One log and what was read of it."""

    path: Path
    open_log: Callable[[], int]  # raises OSError
    course: Course = field(default_factory=Course)
    spans: list[Span] = field(default_factory=list)
    is_local: bool = False  # written on this cluster: moments without a zone are local

    def read(self, progress: Progress | None = None) -> None:
        """Read the log. Raises FileNotFoundError, and OpsctlError for any other problem."""
        reader = LogReader()
        self.course = Course(is_local=self.is_local)
        try:
            fd = self.open_log()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unreadable(error) from None
        try:
            for found in reader.read(fd, progress):
                self.course.take(found)
                spans.take(self.spans, found)
        except OSError as error:
            raise self._unreadable(error) from None
        finally:
            os.close(fd)

    def _unreadable(self, error: OSError) -> OpsctlError:
        return OpsctlError(f"{self.path}: cannot read the log: {file_problem(error)}")


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
