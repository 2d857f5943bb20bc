"""A log read as a whole: its course, and of our own logs each attempt's part of the time."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.trusted import open_file
from opsctl.core.output import printable
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs import spans
from opsctl.run.logs.line_text import Lines, blocks
from opsctl.run.logs.reader import LogReader, Progress
from opsctl.run.logs.spans import Span
from opsctl.run.programs.log_formats import FORMATS, training_lines
from opsctl.ui.report.curves import Course

#: Characters of a line that an error shows.
_LONGEST = 100


@dataclass
class LogSource:
    """One log and what was read of it."""

    path: Path
    open_log: Callable[[], int]  # raises OSError
    course: Course = field(default_factory=Course)
    spans: list[Span] = field(default_factory=list)
    is_local: bool = False  # written on this cluster: moments without a zone are local
    is_named: bool = False  # by the user, who expects curves of it

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
            if self.is_named and not (len(self.course) or self.course.starts):
                self._translate(fd)
        except OSError as error:
            raise self._unreadable(error) from None
        finally:
            os.close(fd)

    def _translate(self, fd: int) -> None:
        """Read a log of another program. Raises OpsctlError if it has no iteration in any format."""
        reader, size = LogReader(), os.fstat(fd).st_size
        for lines in training_lines(data for _, data in blocks(fd, 0, size)):
            for found in reader.feed(lines):
                self.course.take(found)
        if not len(self.course):
            raise OpsctlError(
                f"{self.path}: no iteration in any known format ({', '.join(FORMATS)}); {_first_line(fd, size)}"
            )

    def _unreadable(self, error: OSError) -> OpsctlError:
        return OpsctlError(f"{self.path}: cannot read the log: {file_problem(error)}")


def log_of_run(paths: RunPaths) -> LogSource:
    """Return the run's training log, which must belong to the run's owner or its group."""
    return LogSource(paths.main_log, lambda: open_file(paths.output, paths.main_log), is_local=True)


def log_named(path: Path) -> LogSource:
    """Return a log that the user names: any regular file."""
    return LogSource(path, lambda: _opened(path), is_named=True)


def _first_line(fd: int, size: int) -> str:
    """Return a text with the first line that has a loss, or else the first that is not blank, cut at 100 characters."""
    first, lines = "", Lines()
    for _, data in blocks(fd, 0, size):
        for line in map(str.strip, chain(lines.feed(data), lines.rest())):
            first = first or line
            if "loss" in line:
                return f"the first line with a loss: {_cut(line)}"
    return f"the first line: {_cut(first)}" if first else "it is empty"


def _cut(line: str) -> str:
    text = printable(line)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _opened(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a FIFO would hang
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OpsctlError(f"{path}: not a plain file: name a training's log")
    return fd
