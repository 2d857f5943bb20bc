"""The end of a training log on the hub; the rest of it is not fetched.

What was fetched is in a file without a name, at the places where the log has it, so that the readers of a log at hand
(`opsctl.run.logs`) read this one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from opsctl.run.logs.line_text import end_of_whole_lines, last_lines, start_of_last
from opsctl.transfer.hub.far_files import FarFiles, Look

#: How much of a log's end is fetched at first; four times as much, as often as that is not enough.
_FIRST_BYTES = 64 * 1024
#: Where a run's training log is in its repository, as in its output folder.
MAIN_LOG = "logs/main_log.txt"


@contextlib.contextmanager
def fetched_end(files: FarFiles, look: Look, least_bytes: int) -> Iterator[int]:
    """Yield a descriptor of a file as long as the log, in which its last `least_bytes` bytes stand, or all of it."""
    with tempfile.TemporaryFile() as copy:
        os.ftruncate(copy.fileno(), look.size_bytes)
        _fetch(files, look, copy.fileno(), max(0, look.size_bytes - least_bytes), look.size_bytes)
        yield copy.fileno()


def last_far_lines(files: FarFiles, look: Look, count: int) -> list[str]:
    """Return the last `count` lines. A line end at the very end begins no further line."""
    with _end_with(files, look, count) as fd:
        return list(last_lines(fd, count))


@contextlib.contextmanager
def _end_with(files: FarFiles, look: Look, lines: int) -> Iterator[int]:
    """As `fetched_end`, with at least so many lines in it, and the one that is not ended yet."""
    with tempfile.TemporaryFile() as copy:
        fd, begin, width = copy.fileno(), look.size_bytes, _FIRST_BYTES
        os.ftruncate(fd, look.size_bytes)
        while begin > 0:
            start = max(0, look.size_bytes - width)
            _fetch(files, look, fd, start, begin)
            begin, width = start, 4 * width
            # Not where what is there begins, for that may be the middle of a line.
            if start_of_last(fd, lines, end_of_whole_lines(fd)) > begin:
                break
        yield fd


def _fetch(files: FarFiles, look: Look, fd: int, start: int, end: int) -> None:
    for data in files.read(MAIN_LOG, look, start, end):
        os.pwrite(fd, data, start)
        start += len(data)
