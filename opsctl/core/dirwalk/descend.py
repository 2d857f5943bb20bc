"""Getting from a root to the folders under it, by descriptor and through no link."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
#: Deeper folders are not looked into, and said to be so.
DEEPEST = 500


class Way:
    """The folders from the root down to one place, held open, so that the next place is a few steps away.

    Raises OSError where the root cannot be opened. How one gets there is the caller's word, links and all.
    """

    def __init__(self, root: Path) -> None:
        self._fds = [os.open(root, _FOLDER)]
        self._names: list[str] = []

    @property
    def root(self) -> int:
        """The root's descriptor."""
        return self._fds[0]

    def to(self, place: str) -> int:
        """A descriptor of the folder at `place`, this Way's own until the next one is asked for. Raises OSError."""
        names = place.split("/") if place else []
        if len(names) > DEEPEST:
            raise OSError(errno.ELOOP, f"it is more than {DEEPEST} folders deep")
        common = 0
        while common < min(len(names), len(self._names)) and names[common] == self._names[common]:
            common += 1
        self._back_to(common)
        for name in names[common:]:
            self._fds.append(os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self._fds[-1]))
            self._names.append(name)
        return self._fds[-1]

    def comes_back(self, seen: os.stat_result) -> bool:
        """Whether the folder that was reached is one of those above it: somebody has mounted it there once more."""
        return any(os.path.samestat(seen, os.fstat(fd)) for fd in self._fds[:-1])

    def close(self) -> None:
        """Let go of all of them."""
        self._back_to(0)
        os.close(self._fds.pop())

    def _back_to(self, depth: int) -> None:
        while len(self._names) > depth:
            self._names.pop()
            os.close(self._fds.pop())
