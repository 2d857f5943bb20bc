"""Copying a step's output into the training log: whole lines, at once, and never at the training's expense."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from opsctl.records.state_files import append_bytes, make_folder

#: Longest that a whole line waits before it is in the file, seconds.
FLUSH_S = 0.2
#: Whoever holds the log is not waited for any longer: a line late is worse than two that run together.
LOG_LOCK_WAIT_S = 0.2
#: Bytes after which what has come is written at once.
_FLUSH_BYTES = 64 * 1024
#: A line without an end is cut here, so that a progress bar cannot grow for ever.
_LONGEST_LINE_BYTES = 1024 * 1024
#: What is kept for later while the file cannot be written (a full disk).
_MOST_KEPT_BYTES = 8 * 1024 * 1024


class MainLog:
    """Appends to `path` and copies to this process's stdout (Slurm's own output file)."""

    def __init__(self, root: Path, path: Path, copy_to_fd: int | None = 1) -> None:
        """`root`: the run's output folder."""
        self.root, self.path = root, path
        self.copy_to_fd = copy_to_fd
        self._whole = bytearray()
        self._partial = bytearray()
        self._oldest_at: float | None = None
        self._kept = b""
        self._troubled = False
        with contextlib.suppress(OSError):
            make_folder(root, path.parent)

    def say(self, line: str) -> None:
        """One line of our own, now."""
        self.flush()
        self._write((line + "\n").encode())

    def feed(self, data: bytes) -> None:
        """Take what a step printed; write it when enough or old enough."""
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            self._whole += self._partial + head + newline
            self._partial = bytearray(tail)
        else:
            self._partial += data
        if len(self._partial) > _LONGEST_LINE_BYTES:
            self._whole += self._partial + b"\n"
            self._partial.clear()
        if self._whole and self._oldest_at is None:
            self._oldest_at = time.monotonic()
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Write what has waited long enough."""
        if self._oldest_at is not None and (
            len(self._whole) >= _FLUSH_BYTES or time.monotonic() - self._oldest_at >= FLUSH_S
        ):
            self.flush()

    def flush(self) -> None:
        """Write every whole line."""
        if self._whole:
            data, self._whole, self._oldest_at = bytes(self._whole), bytearray(), None
            self._write(data)

    def close(self) -> None:
        """Write everything, an unfinished line as a line."""
        if self._partial:
            self._whole += self._partial + b"\n"
            self._partial.clear()
        self.flush()

    def _write(self, data: bytes) -> None:
        self._copy(data)
        try:
            append_bytes(self.root, self.path, self._kept + data, LOG_LOCK_WAIT_S)
            self._kept = b""
            self._troubled = False
        except OSError as error:
            self._kept = (self._kept + data)[-_MOST_KEPT_BYTES:]
            if not self._troubled:
                self._troubled = True
                self._copy(f"opsctl: cannot write {self.path}: {error.strerror}; it gets the lines later\n".encode())

    def _copy(self, data: bytes) -> None:
        if self.copy_to_fd is None:
            return
        view = memoryview(data)
        with contextlib.suppress(OSError):
            while view:
                view = view[os.write(self.copy_to_fd, view) :]
