"""Pass on a program's output, with line ends in its progress bars.

srun passes on whole lines, and about a kilobyte of an unfinished one. A bar gets no line end for minutes, so that the
steps that it shows would be late.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

#: A bar that does not change for this long gets a line end, and one that changes all the time gets one this often.
_QUIET_S, _EVERY_S = 0.5, 1.0
_CHUNK_BYTES = 64 * 1024


class LineEnds:
    """Adds line ends to a bar."""

    def __init__(self, started_at: float) -> None:
        self._ended_at = started_at  # when a line last ended
        self.is_bar = False  # True within a line that was begun again with a carriage return

    def passed(self, data: bytes, at: float) -> bytes:
        """Return the output to pass on for `data`, which came at the time `at` in seconds."""
        _, end, tail = data.rpartition(b"\n")
        if self.is_bar and not end and at - self._ended_at >= _EVERY_S:
            data, self._ended_at = data.replace(b"\r", b"\r\n", 1), at
        if end:
            self._ended_at = at
        self.is_bar = b"\r" in tail or (self.is_bar and not end)
        return data

    def after_quiet(self, at: float) -> bytes:
        """Return the line end that an unchanged bar gets."""
        self.is_bar, self._ended_at = False, at
        return b"\n"


class ProgramOutput(threading.Thread):
    """Copies what processes write to `end` to the file descriptor `to`, until all of them have ended."""

    def __init__(self, to: int) -> None:
        super().__init__(name="program-output", daemon=True)
        self._from, self.end = os.pipe()
        self._to = to

    def close(self, timeout_s: float) -> None:
        """Close this process's `end`, and wait until the output of the others is copied."""
        with contextlib.suppress(OSError):
            os.close(self.end)
        self.join(timeout_s)

    def run(self) -> None:
        """Copy."""
        lines = LineEnds(time.monotonic())
        while True:
            is_ready = select.select([self._from], [], [], _QUIET_S if lines.is_bar else None)[0]
            data = os.read(self._from, _CHUNK_BYTES) if is_ready else b""
            if is_ready and not data:
                return
            at = time.monotonic()
            self._write(lines.passed(data, at) if data else lines.after_quiet(at))

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the reader has gone: the program's output is not needed
            while data:
                data = data[os.write(self._to, data) :]
