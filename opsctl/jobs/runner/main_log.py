"""Copy a step's output to the training log: whole lines, at once, and without delaying the training.

Lines that the log cannot take are kept and written later, in order. Lines that it never took are counted in the job's
own output, which has all of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from opsctl.core.files.state_files import LOG_LOCK_WAIT_S, PartlyWritten, append_bytes, make_folder

#: Longest that a whole line waits before it is in the file, seconds.
FLUSH_S = 0.2
#: Between two tries while the file cannot be written, seconds: each may leave half a line on a disk that is full.
RETRY_S = 5.0
#: Bytes after which what has come is written at once.
_FLUSH_BYTES = 64 * 1024
#: A line without an end is cut here, so that a progress bar cannot grow for ever.
_LONGEST_LINE_BYTES = 1024 * 1024
#: What is kept for later while the file cannot be written (a full disk); of more the oldest lines go.
MOST_KEPT_BYTES = 8 * 1024 * 1024


class MainLog:
    """Appends to `path` and copies to this process's stdout (Slurm's own output file)."""

    def __init__(self, root: Path, path: Path, copy_to_fd: int | None = 1) -> None:
        """`root`: the run's output folder."""
        self.root, self.path = root, path
        self.copy_to_fd = copy_to_fd
        self._whole = bytearray()
        self._partial = bytearray()
        self._oldest_at: float | None = None
        self._kept = bytearray()  # whole lines that are still to be written
        self._dropped_lines = 0  # older ones, for which there was no room
        self._trouble = ""  # why the file cannot be written
        self._tried_at = 0.0
        self._lock_wait_s = LOG_LOCK_WAIT_S
        self._copied_all = copy_to_fd is not None
        self._make_folder()

    def add_line(self, line: str) -> None:
        """One line of our own, now."""
        self.flush()
        self._write(_encoded(line), now=True)

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
        """Write what has waited long enough, also for a file that could not be written."""
        if self._trouble and time.monotonic() - self._tried_at >= RETRY_S:
            self._write_kept()
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

    def finish(self) -> None:
        """Write everything for the last time, and say what the file never took."""
        self.close()
        if not self._kept:
            return
        self._write_kept()
        left = self._kept.count(b"\n") + self._dropped_lines
        if left:
            where = "see above" if self._copied_all else "and this output could not take all of them either"
            self._copy_line(f"opsctl: {_lines_are(left)} not in {self.path} ({self._trouble}): {where}")

    def _write(self, data: bytes, now: bool = False) -> None:
        self._copy(data)
        self._kept += data
        self._drop_oldest()
        if now or not self._trouble or time.monotonic() - self._tried_at >= RETRY_S:
            self._write_kept()

    def _write_kept(self) -> None:
        """Append what is kept; whole lines that the file does not take stay."""
        self._tried_at = time.monotonic()
        data = self._note_of_dropped() + self._kept
        try:
            had_lock = append_bytes(self.root, self.path, data, self._lock_wait_s)
        except OSError as error:
            taken = data.rfind(b"\n", 0, error.written_bytes) + 1 if isinstance(error, PartlyWritten) else 0
            if taken:
                self._dropped_lines, self._kept = 0, bytearray(data[taken:])
            if not self._trouble:
                self._trouble = error.strerror or str(error)
                self._copy_line(f"opsctl: cannot write {self.path}: {self._trouble}; it gets the lines later")
            if error.errno == errno.ENOENT:
                self._make_folder()
            return
        self._dropped_lines, self._trouble = 0, ""
        self._kept.clear()
        # A process that hangs with the lock delays this one once, not at every line.
        self._lock_wait_s = LOG_LOCK_WAIT_S if had_lock else 0.0

    def _note_of_dropped(self) -> bytes:
        if not self._dropped_lines:
            return b""
        where = "the job's own output has them" if self._copied_all else "they are lost"
        return _encoded(f"opsctl: {_lines_are(self._dropped_lines)} missing here ({self._trouble}): {where}")

    def _drop_oldest(self) -> None:
        too_many = len(self._kept) - MOST_KEPT_BYTES
        if too_many > 0:
            end = self._kept.find(b"\n", too_many) + 1
            self._dropped_lines += self._kept.count(b"\n", 0, end)
            del self._kept[:end]

    def _make_folder(self) -> None:
        with contextlib.suppress(OSError):  # what is wrong shows when a line is to be written
            make_folder(self.root, self.path.parent)

    def _copy_line(self, line: str) -> None:
        self._copy(_encoded(line))

    def _copy(self, data: bytes) -> None:
        if self.copy_to_fd is None:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.copy_to_fd, view) :]
        except OSError:
            self._copied_all = False


def _lines_are(count: int) -> str:
    return "1 line is" if count == 1 else f"{count} lines are"


def _encoded(line: str) -> bytes:
    """Encode a line of ours; it may name a path that is no text."""
    return f"{line}\n".encode(errors="backslashreplace")
