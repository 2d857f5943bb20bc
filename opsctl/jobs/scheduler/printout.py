"""What a job prints, in a file of bounded size: its beginning as it comes, its end when it is over."""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path
from types import TracebackType

from opsctl.core.files.state_files import append_bytes

#: Written as it comes.
MOST_BYTES = 1 << 20
#: Of what comes after that, the end is kept.
END_BYTES = 64 << 10
_CHUNK_BYTES = 64 << 10
_WAIT_S = 0.2


class Printout:
    """The file `path` under `root`. A disk that takes nothing keeps no program from running."""

    def __init__(self, root: Path, path: Path) -> None:
        self.root, self.path = root, path
        self.got_any = False  # whether the last look brought anything
        self._written = 0
        self._line = bytearray()  # one that has no end yet
        self._end = bytearray()
        self._left_out = 0

    def __enter__(self) -> Printout:
        self._append(b"")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take(b"", is_last=True)
        if self._left_out:
            self._append(b"... %d bytes are left out here ...\n" % self._left_out)
        if self._end:
            self._append(bytes(self._end))

    def copy_what_comes(self, fd: int, wait_s: float = _WAIT_S) -> bool:
        """Take what there is, waiting a moment for it; False at the end of the output."""
        self.got_any = False
        ready, _, _ = select.select([fd], [], [], wait_s)
        if not ready:
            return True
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        self.got_any = bool(data)
        self._take(data)
        return bool(data)

    def _take(self, data: bytes, is_last: bool = False) -> None:
        """Whole lines, for what is appended begins on a fresh one."""
        self._line += data
        whole = len(self._line) if is_last or len(self._line) > _CHUNK_BYTES else self._line.rfind(b"\n") + 1
        taken = bytes(self._line[:whole])
        del self._line[:whole]
        if taken and not self._end and self._written + len(taken) <= MOST_BYTES:
            self._append(taken)
            self._written += len(taken)
            return
        self._end += taken
        too_many = len(self._end) - END_BYTES
        if too_many > 0:
            self._left_out += too_many
            del self._end[:too_many]

    def _append(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            append_bytes(self.root, self.path, data)
