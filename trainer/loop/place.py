"""The place of a file that a training looks at, or writes, for months."""

from __future__ import annotations

import contextlib
from pathlib import Path

from trainer.core.files import read_plain, write_atomically
from trainer.core.held_folder import HeldFolder

_LARGEST_NOTE_BYTES = 64 * 1024


class Place:
    """A file's place in a folder that is held from now on; none without a path."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._folder = HeldFolder(path.parent) if path is not None else None
        if self._folder is not None:
            with contextlib.suppress(OSError):  # it may come later
                self._folder.descriptor()

    def is_taken(self) -> bool:
        """Whether anything is there: what it is, nobody asks, and nobody opens it."""
        return self._folder is not None and self._path is not None and self._folder.has(self._path.name)

    def read(self, name: str | None = None) -> bytes:
        """The contents of the file, or of the one called `name` beside it; empty without a path. Raises OSError."""
        if self._folder is None or self._path is None:
            return b""
        return read_plain(self._folder.place() / (name or self._path.name), _LARGEST_NOTE_BYTES)

    def write(self, text: str, name: str | None = None) -> None:
        """Write the file, or the one called `name` beside it. Raises OSError."""
        if self._folder is not None and self._path is not None:
            write_atomically(self._folder.place() / (name or self._path.name), text)
