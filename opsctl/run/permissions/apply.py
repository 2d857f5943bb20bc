"""Check all entries of a group's folder, and open the caller's own to the group: a visitor of a walk.

Every entry is changed through the descriptor that was checked, in the folder that the walk has open, so that a link
that replaces it meanwhile is not followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path

from opsctl.core.dirwalk.sequential import ITSELF, Folder, Visitor, Way, under
from opsctl.core.files.trusted import kind_of
from opsctl.run.permissions.rule import STATE, Lack, is_sealed, lack, left_to_its_owner

_MODE_AND_GROUP = itemgetter(stat.ST_MODE, stat.ST_GID)
#: Examples that are printed of each problem.
MOST_EXAMPLES = 5


@dataclass(frozen=True)
class Trouble:
    """One kind of problem."""

    uid: int
    is_folder: bool
    lacks: tuple[str, ...]
    is_fixed: bool = False
    why: str = ""  # why it was not fixed


@dataclass
class Count:
    """The number of entries with one kind of problem, and some places."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, count: int, examples: list[str]) -> None:
        """Add more entries."""
        self.count += count
        self.examples += examples[: MOST_EXAMPLES - len(self.examples)]


@dataclass
class Seen:
    """The problems found, and the number of entries checked."""

    troubles: dict[Trouble, Count] = field(default_factory=dict)
    entries: int = 0
    own_runs: list[str] = field(default_factory=list)  # runs of another group, or shared with no group: skipped

    def add(self, other: Seen) -> None:
        """Add the results of another part of the walk."""
        self.entries += other.entries
        self.own_runs += other.own_runs
        for trouble, count in other.troubles.items():
            self.troubles.setdefault(trouble, Count()).add(count.count, count.examples)


@dataclass
class Opening(Visitor[Seen]):
    """A visitor that records which access the group `gid` lacks, and fixes it on request.

    fixes: fix the caller's own entries, or all for root. only_counts: change nothing. above: path of the walk's start
    from the output folder of its run, on which the rule depends.
    """

    gid: int
    fixes: bool = False
    only_counts: bool = False
    above: str = ""
    seen: Seen = field(default_factory=Seen)
    _entries: int = 0
    _fine: set[tuple[int, int]] = field(default_factory=set)  # modes and groups that are right in any folder
    _left_alone: set[str] = field(default_factory=set)

    def see_all(self, folder: Folder, names: Sequence[str], seen: Sequence[os.stat_result]) -> None:
        """Check several entries; entries whose modes were right before are only counted."""
        self._left_alone.clear()
        if self._fine.issuperset(map(_MODE_AND_GROUP, seen)):
            self._entries += len(names)
        else:
            super().see_all(folder, names, seen)

    def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
        """Check one entry."""
        self._entries += 1
        is_folder = stat.S_ISDIR(seen.st_mode)
        place = folder.place if name == ITSELF else under(folder.place, name)
        if is_folder and name != ITSELF and self._is_anothers_run(folder, name, seen):
            self.seen.own_runs.append(place)
            self._left_alone.add(name)
        elif is_folder or stat.S_ISREG(seen.st_mode):
            is_sticky = name != ITSELF and bool(os.fstat(folder.fd).st_mode & stat.S_ISVTX)
            self._judge(folder, name, place, seen, is_sticky)

    def see_to_read(self, path: Path) -> None:
        """Check one file that the group may read but not write. Raises OSError if it does not exist."""
        way = Way(path.parent)
        try:
            seen = os.stat(path.name, dir_fd=way.root, follow_symlinks=False)
            if stat.S_ISREG(seen.st_mode):
                self._entries += 1
                self._judge(Folder("", way.root), path.name, path.name, seen, is_kept_apart=True)
        finally:
            way.close()

    def goes_into(self, folder: Folder, name: str) -> bool:
        """Return True if the walk enters a folder: it skips runs of others."""
        return name not in self._left_alone

    def take(self) -> Seen:
        """Return the results since the last call."""
        found, self.seen = self.seen, Seen()
        found.entries, self._entries = self._entries, 0
        return found

    def _judge(self, folder: Folder, name: str, place: str, seen: os.stat_result, is_kept_apart: bool) -> None:
        in_run = under(self.above, place) if place else self.above
        found = lack(self.gid, in_run, seen, is_kept_apart)
        if found is not None:
            trouble = self._dealt_with(folder, name, seen, found)
            self.seen.troubles.setdefault(trouble, Count()).add(1, [place])
        elif not is_kept_apart and not is_sealed(in_run):  # the strictest place of the rule
            self._fine.add(_MODE_AND_GROUP(seen))

    def _dealt_with(self, folder: Folder, name: str, seen: os.stat_result, found: Lack) -> Trouble:
        is_folder = stat.S_ISDIR(seen.st_mode)
        left = left_to_its_owner(seen)
        trouble = Trouble(seen.st_uid, is_folder, found.words(is_folder), why=left)
        if not self.fixes or left or os.geteuid() not in (seen.st_uid, 0):
            return trouble
        try:
            if not self.only_counts:
                _fix(folder.fd, name, seen, self.gid, found)
        except OSError as error:
            return replace(trouble, why=error.strerror or str(error))
        return replace(trouble, is_fixed=True)

    def _is_anothers_run(self, folder: Folder, name: str, seen: os.stat_result) -> bool:
        """Return True for the output folder of a run that is not shared with this group."""
        if seen.st_gid == self.gid and seen.st_mode & stat.S_IRWXG:
            return False
        with contextlib.suppress(OSError):
            os.stat(f"{name}/{STATE}", dir_fd=folder.fd, follow_symlinks=False)
            return True
        return False


def _fix(within: int, name: str, seen: os.stat_result, gid: int, found: Lack) -> None:
    """Set group and mode of the entry. Raises OSError, also if the file system does not keep them."""
    with _held(within, name, seen) as (held, now):
        if now.st_gid != gid:
            os.chown(held, -1, gid)
        # Directly after chgrp, which clears the setgid bit.
        held.chmod(found.fixed(now.st_mode))
        after = held.stat()
        if after.st_gid != gid or stat.S_IMODE(after.st_mode) != found.fixed(now.st_mode):
            raise OSError(0, "the file system does not keep that mode")


@contextlib.contextmanager
def _held(within: int, name: str, seen: os.stat_result) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield a path of this very entry, and its current state. Raises OSError if it was replaced."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        now = os.fstat(fd)
        is_it = os.path.samestat(now, seen) and kind_of(now.st_mode) == kind_of(seen.st_mode)
        if not is_it or now.st_uid != seen.st_uid:
            raise OSError(0, "it was replaced meanwhile")
        yield Path(f"/proc/self/fd/{fd}"), now
    finally:
        os.close(fd)
