"""Folders that are found again wherever they are moved to: what a training looks into and saves to for months."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path


class HeldFolder:
    """A folder that is kept open, so that moving it on its file system changes nothing for who holds it.

    One that was removed is looked for by its path again. `path` is as the user gave it, for what is said.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._absolute = path.absolute()  # whatever becomes of the working directory
        self._fd: int | None = None

    def descriptor(self) -> int:
        """The folder's own, for calls with a `dir_fd`. Raises OSError where there is none."""
        if self._fd is not None and not _is_there(self._fd):
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None
        if self._fd is None:
            self._fd = os.open(self._absolute, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._fd

    def place(self) -> Path:
        """A path that leads into the folder wherever it is now, in this process. Raises OSError."""
        return Path(f"/proc/self/fd/{self.descriptor()}")

    def has(self, name: str) -> bool:
        """Whether anything of this name is there, where the folder is now or where it was: a dangling link too.

        A file system that does not answer properly says no more than "not seen".
        """
        with contextlib.suppress(OSError):
            os.stat(name, dir_fd=self.descriptor(), follow_symlinks=False)
            return True
        return os.path.lexists(self._absolute / name)

    def said(self, text: str) -> str:
        """`text` with the folder's path as the user gave it, where it has `place()`."""
        return text if self._fd is None else re.sub(rf"/proc/self/fd/{self._fd}(?!\d)", lambda _: str(self.path), text)


def _is_there(fd: int) -> bool:
    """False for a folder that was removed, and for one that its file server no longer knows."""
    try:
        return os.fstat(fd).st_nlink > 0
    except OSError:
        return False
