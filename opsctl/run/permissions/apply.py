"""Looking at all that is in a group's folder, and opening what is the caller's own: a visitor of a walk.

Every entry is changed by the descriptor that was looked at, in the folder that the walk has open: a link that takes its
place meanwhile is not followed.
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
from opsctl.run.permissions.replace import is_left_over, remove_left_over, replace_file
from opsctl.run.permissions.rule import STATE, Lack, is_sealed, lack, left_to_its_owner

_MODE_AND_GROUP = itemgetter(stat.ST_MODE, stat.ST_GID)
#: Examples that are told of each kind of trouble.
MOST_EXAMPLES = 5


@dataclass(frozen=True)
class Trouble:
    """One kind of what is wrong."""

    uid: int
    is_folder: bool
    lacks: tuple[str, ...]
    state: str = ""  # "mended", "replaced"; empty: it is still so
    why: str = ""  # why a fix leaves it as it is, or has failed


@dataclass
class Count:
    """How often there is one, and some places."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, count: int, examples: list[str]) -> None:
        """Add more of the same."""
        self.count += count
        self.examples += examples[: MOST_EXAMPLES - len(self.examples)]


@dataclass
class Seen:
    """What was found, and how much was looked at."""

    troubles: dict[Trouble, Count] = field(default_factory=dict)
    entries: int = 0
    own_runs: list[str] = field(default_factory=list)  # runs of another group's, or nobody's: left alone

    def add(self, other: Seen) -> None:
        """Add what another part of the walk has found."""
        self.entries += other.entries
        self.own_runs += other.own_runs
        for trouble, count in other.troubles.items():
            self.troubles.setdefault(trouble, Count()).add(count.count, count.examples)


@dataclass
class Opening(Visitor[Seen]):
    """A visitor that notes what the group `gid` lacks, and mends it where that is asked for.

    mend: what is the caller's own, or all for root. replaces: also others' files, by a copy. above: where the walk
    begins, from the output folder of the run on that it is in; what is a run's keeps its rule whoever names it.
    """

    gid: int
    mend: bool = False
    replaces: bool = False
    only_counts: bool = False  # say what would be mended, and change nothing
    above: str = ""
    seen: Seen = field(default_factory=Seen)
    _entries: int = 0
    _fine: set[tuple[int, int]] = field(default_factory=set)  # modes and groups that lack nothing, wherever they are
    _left_alone: set[str] = field(default_factory=set)
    _asked: Folder | None = None
    _answer: bool = False

    def see_all(self, folder: Folder, names: Sequence[str], seen: Sequence[os.stat_result]) -> None:
        """Several entries; where all of them are as most are, no more is done than to see that."""
        self._left_alone.clear()
        if self._fine.issuperset(map(_MODE_AND_GROUP, seen)) and not (self.mend and any(map(is_left_over, names))):
            self._entries += len(names)
        else:
            super().see_all(folder, names, seen)

    def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
        """One entry."""
        self._entries += 1
        is_folder = stat.S_ISDIR(seen.st_mode)
        place = folder.place if name == ITSELF else under(folder.place, name)
        if is_folder and name != ITSELF and self._is_anothers_run(folder, name, seen):
            self.seen.own_runs.append(place)
            self._left_alone.add(name)
            return
        if not is_folder and not stat.S_ISREG(seen.st_mode):
            return
        if is_left_over(name) and self.mend and not self.only_counts:
            remove_left_over(folder.fd, name)
        self._judge(folder, name, place, seen, self._is_sticky(folder, name))

    def see_to_read(self, path: Path) -> None:
        """One file by itself, which the group is to read and not to write. Raises OSError where it is not there."""
        way = Way(path.parent)
        try:
            seen = os.stat(path.name, dir_fd=way.root, follow_symlinks=False)
            if stat.S_ISREG(seen.st_mode):
                self._entries += 1
                self._judge(Folder("", way.root), path.name, path.name, seen, is_kept_apart=True)
        finally:
            way.close()

    def goes_into(self, folder: Folder, name: str) -> bool:
        """Not into runs that are others'."""
        return name not in self._left_alone

    def take(self) -> Seen:
        """What was found since this was asked last."""
        found, self.seen = self.seen, Seen()
        found.entries, self._entries = self._entries, 0
        return found

    def _judge(self, folder: Folder, name: str, place: str, seen: os.stat_result, is_kept_apart: bool) -> None:
        in_run = self._in_run(place)
        found = lack(self.gid, in_run, seen, is_kept_apart)
        if found is not None:
            trouble = self._dealt_with(folder, name, place, seen, found)
            self.seen.troubles.setdefault(trouble, Count()).add(1, [place])
        elif not is_kept_apart and not is_sealed(in_run):  # where the most is asked for
            self._fine.add(_MODE_AND_GROUP(seen))

    def _dealt_with(self, folder: Folder, name: str, place: str, seen: os.stat_result, found: Lack) -> Trouble:
        is_folder = stat.S_ISDIR(seen.st_mode)
        left = left_to_its_owner(seen)
        trouble = Trouble(seen.st_uid, is_folder, found.words(is_folder), why=left)
        if not self.mend:
            return trouble
        is_own = seen.st_uid == os.geteuid() or os.geteuid() == 0
        if not is_own and not (self.replaces and not is_folder):
            return trouble
        try:
            if is_own:
                if left:
                    return trouble
                if not self.only_counts:
                    _mend(folder.fd, name, seen, self.gid, found)
                return replace(trouble, state="mended")
            why = replace_file(folder.fd, name, self._in_run(place), seen, self.gid, found, self.only_counts)
        except OSError as error:
            why = error.strerror or str(error)
        return replace(trouble, why=why) if why else replace(trouble, state="replaced", why="")

    def _in_run(self, place: str) -> str:
        return under(self.above, place) if place else self.above

    def _is_anothers_run(self, folder: Folder, name: str, seen: os.stat_result) -> bool:
        """Whether that is the output folder of a run which is not shared with this group."""
        if seen.st_gid == self.gid and seen.st_mode & stat.S_IRWXG:
            return False
        with contextlib.suppress(OSError):
            os.stat(f"{name}/{STATE}", dir_fd=folder.fd, follow_symlinks=False)
            return True
        return False

    def _is_sticky(self, folder: Folder, name: str) -> bool:
        if self._asked is not folder:
            self._asked, self._answer = folder, bool(os.fstat(folder.fd).st_mode & stat.S_ISVTX)
        return self._answer and name != ITSELF


def _mend(within: int, name: str, seen: os.stat_result, gid: int, found: Lack) -> None:
    """Give the entry its group and mode. Raises OSError, also where the file system does not keep what it was given."""
    with _held(within, name, seen) as (held, now):
        if now.st_gid != gid:
            os.chown(held, -1, gid)
        # After the chgrp, at once: that clears the setgid bit.
        held.chmod(found.mended(now.st_mode))
        after = held.stat()
        if after.st_gid != gid or stat.S_IMODE(after.st_mode) != found.mended(now.st_mode):
            raise OSError(0, "the file system does not keep that mode")


@contextlib.contextmanager
def _held(within: int, name: str, seen: os.stat_result) -> Iterator[tuple[Path, os.stat_result]]:
    """A path that is this very entry, and nothing that takes its place; and what it is now. Raises OSError."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        now = os.fstat(fd)
        is_it = os.path.samestat(now, seen) and kind_of(now.st_mode) == kind_of(seen.st_mode)
        if not is_it or now.st_uid != seen.st_uid:
            raise OSError(0, "something else took its place meanwhile")
        yield Path(f"/proc/self/fd/{fd}"), now
    finally:
        os.close(fd)
