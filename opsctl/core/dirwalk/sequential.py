"""Going through folders in this process, one after the other.

A folder's names are taken in their order, so that a walk which stops in the middle of a large one can say where. What
vanishes meanwhile is passed over.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from opsctl.core.dirwalk.file_system import mounted_under

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
#: Deeper folders are not looked into, and said to be so.
DEEPEST = 500


class Way:
    """The folders from the root down to one place, held open. Raises OSError where the root cannot be opened."""

    def __init__(self, root: Path) -> None:
        self._fds = [os.open(root, _OPEN_FOLDER)]
        self._names: list[str] = []

    @property
    def root(self) -> int:
        """The root's descriptor."""
        return self._fds[0]

    def to(self, place: str) -> int:
        """Return a descriptor of the folder at `place`, owned by this Way until the next call. Raises OSError."""
        names = place.split("/") if place else []
        if len(names) > DEEPEST:
            raise OSError(errno.ELOOP, f"it is more than {DEEPEST} folders deep")
        common = 0
        while common < min(len(names), len(self._names)) and names[common] == self._names[common]:
            common += 1
        self._back_to(common)
        for name in names[common:]:
            self._fds.append(os.open(name, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=self._fds[-1]))
            self._names.append(name)
        return self._fds[-1]

    def close(self) -> None:
        """Let go of all of them."""
        self._back_to(0)
        os.close(self._fds.pop())

    def _back_to(self, depth: int) -> None:
        while len(self._names) > depth:
            self._names.pop()
            os.close(self._fds.pop())


class Pending(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder that is not walked yet, or what comes in it after the name `after`."""

    place: str = ""  # from the root on, with slashes between; empty: the root
    after: str = ""  # names up to this one have been seen


#: Where a walk begins.
BEGINNING = (Pending(),)
#: The largest number of unreadable folders that are listed one by one.
MOST_UNREAD = 100


class Unread(msgspec.Struct, frozen=True):
    """A folder that could not be looked into."""

    place: str
    why: str


@dataclass(frozen=True)
class Walked:
    """The progress of a walk."""

    pending: tuple[Pending, ...]  # empty: all is seen
    entries: int  # seen this time; the root is none
    unread: tuple[Unread, ...] = ()  # the first of them; what vanishes meanwhile is not among them
    unread_count: int = 0
    hanging: tuple[str, ...] = ()  # places that did not answer; they are pending still, after all others

    @property
    def is_done(self) -> bool:
        """Return whether the walk is complete."""
        return not self.pending


def under(place: str, name: str) -> str:
    """Return the place of `name` in the folder `place`."""
    return f"{place}/{name}" if place else name


Found = TypeVar("Found")
#: Folders of one folder that are pending at once: the next ones wait until those are done.
MOST_FOLDERS = 5_000
#: Entries that are looked at together, between two looks at the clock.
_LOOK_EACH = 64
_KIND, _FOLDER = 0o170000, stat.S_IFDIR
#: The root's name in itself.
ITSELF = "."
_BLOCK_BYTES = 512  # what st_blocks counts


@dataclass(frozen=True)
class Folder:
    """A folder that is open."""

    place: str  # from the root on; empty: the root
    fd: int


class Visitor(ABC, Generic[Found]):
    """The processing of the entries that a walk finds."""

    @abstractmethod
    def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
        """One entry: what `name` in `folder` is, not followed. The root comes first, as ITSELF in itself."""

    def see_all(self, folder: Folder, names: Sequence[str], seen: Sequence[os.stat_result]) -> None:
        """Several entries of one folder, in their order."""
        for name, one in zip(names, seen, strict=True):
            self.see(folder, name, one)

    def goes_into(self, folder: Folder, name: str) -> bool:
        """Return whether the walk enters this folder, which it has just seen."""
        return True

    @abstractmethod
    def take(self) -> Found:
        """Return what was found since the last call."""


class Stretch(Generic[Found]):
    """A walk under one root, resumable, within its file system. Raises OSError."""

    def __init__(self, root: Path, visitor: Visitor[Found]) -> None:
        self.visitor = visitor
        self.entries = 0  # seen up to now; the root is none
        self.unread: list[Unread] = []  # since it was last emptied
        self._way = Way(root)
        self._device = os.fstat(self._way.root).st_dev
        # Where they are mounted is known without a look at them: one of them may hang.
        self._mounts = mounted_under(str(Path(f"/proc/self/fd/{self._way.root}").readlink()))
        self._kept: tuple[Pending, Iterator[str]] | None = None  # the rest of a folder that was stopped in

    def go(self, stack: list[Pending], most_entries: int, ends_at: float) -> None:
        """Take folders from the end of `stack` and leave there what is not done after so many entries or that time."""
        most = self.entries + most_entries
        while stack and self.entries < most:
            one = stack.pop()
            folders: list[Pending] = []
            try:
                rest = self._in_folder(one, folders, most, ends_at)
            except OSError as error:
                self._not_read(one.place, error)
                rest = None
            stack.extend([rest] if rest is not None else [])
            stack.extend(reversed(folders))
            if time.monotonic() >= ends_at:
                return

    def close(self) -> None:
        """Let go of the root."""
        self._way.close()

    def _in_folder(self, one: Pending, folders: list[Pending], most: int, ends_at: float) -> Pending | None:
        fd = self._way.to(one.place)
        folder = Folder(one.place, fd)
        if one == BEGINNING[0]:
            self.visitor.see(folder, ITSELF, os.fstat(fd))
        elif not one.after and os.fstat(fd).st_dev != self._device:
            return None
        names, mounted = self._names(one, fd), self._mounts.get(one.place, ())
        while True:
            number = min(_LOOK_EACH, most - self.entries, MOST_FOLDERS - len(folders))
            some = list(islice(names, number))
            there, seen = self._looked_at(fd, one.place, [name for name in some if name not in mounted])
            self.visitor.see_all(folder, there, seen)
            self.entries += len(there)
            in_it = [name for name, found in zip(there, seen, strict=True) if found.st_mode & _KIND == _FOLDER]
            folders += [Pending(under(one.place, name)) for name in in_it if self.visitor.goes_into(folder, name)]
            if len(some) < number:
                return None
            if self.entries >= most or len(folders) >= MOST_FOLDERS or time.monotonic() >= ends_at:
                rest = Pending(one.place, some[-1])
                self._kept = rest, names
                return rest

    def _looked_at(self, fd: int, place: str, names: list[str]) -> tuple[list[str], list[os.stat_result]]:
        """Return the status of each name, and the names that could be read."""
        look = os.stat
        with contextlib.suppress(OSError):  # of one of them: then one by one
            return names, [look(name, dir_fd=fd, follow_symlinks=False) for name in names]
        found = {}
        for name in names:
            try:
                found[name] = look(name, dir_fd=fd, follow_symlinks=False)
            except OSError as error:
                self._not_read(under(place, name), error)
        return list(found), list(found.values())

    def _names(self, one: Pending, fd: int) -> Iterator[str]:
        """Return the names in the folder that come after `one.after`, in order."""
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] == one:
            return kept[1]
        return iter(sorted(name for name in os.listdir(fd) if name > one.after))

    def _not_read(self, place: str, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):  # gone, or another thing now
            self.unread.append(Unread(place, error.strerror or str(error)))


def share_of_bytes(seen: os.stat_result) -> int:
    """Return what an entry takes on the disk; of a file with several names its share."""
    if seen.st_nlink > 1 and stat.S_ISREG(seen.st_mode):
        return seen.st_blocks * _BLOCK_BYTES // seen.st_nlink
    return seen.st_blocks * _BLOCK_BYTES


def touched_at_s(seen: os.stat_result) -> float:
    """Return when an entry was read or written last, as far as the file system keeps count."""
    return max(seen.st_atime, seen.st_mtime)
