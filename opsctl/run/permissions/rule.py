"""The access that a group lacks on a file or folder, by its mode and its place in a run.

The rule is the run's own (`records.group_folder`): folders have the group and mode 2770, and the group may do with a
file what its owner may. Nothing is opened to all users. In folders with records that only their writer may change, the
group may only read.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from opsctl.run.config.paths import RunPaths
from opsctl.run.state.group_folder import GROUP_FOLDER_MODE

_RUN = RunPaths(Path("/"))
#: The folder that identifies a run's output folder.
STATE = _RUN.state.name
#: Published revisions and requests: only their writer may change them.
_SEALED = tuple(f"/{path.relative_to(_RUN.output)}/" for path in (_RUN.revisions, _RUN.requests))
_GROUP, _EVERYBODY_WRITES = 0o070, 0o002


@dataclass(frozen=True)
class Lack:
    """The problems of one entry."""

    group: bool = False  # it belongs to another group
    mode: int = 0  # bits that are missing
    open_to_all: bool = False  # all users may write it

    def words(self, is_folder: bool) -> tuple[str, ...]:
        """Return one sentence for each problem."""
        of_group = "its group may not read, write and enter it" if is_folder else "its group may not read and write it"
        problems = (
            (self.group, "belongs to another group"),
            (bool(self.mode & _GROUP), of_group),
            (bool(self.mode & stat.S_ISGID), "new files in it do not get its group (no setgid bit)"),
            (self.open_to_all, "all users may write it"),
        )
        return tuple(words for is_so, words in problems if is_so)

    def fixed(self, mode: int) -> int:
        """Return the right mode for an entry with this one."""
        return (stat.S_IMODE(mode) | self.mode) & ~(_EVERYBODY_WRITES if self.open_to_all else 0)


def left_to_its_owner(seen: os.stat_result) -> str:
    """Return why only its owner should open a file; empty for normal files.

    A file with a second name may be stored elsewhere under that name.
    """
    if stat.S_ISDIR(seen.st_mode):
        return ""
    if seen.st_nlink > 1:
        return "it has a second name (a hard link). Replace it by a copy first"
    return "it runs as its owner (setuid). Run chmod u-s first" if seen.st_mode & stat.S_ISUID else ""


def lack(gid: int, place: str, found: os.stat_result, is_kept_apart: bool) -> Lack | None:
    """Return the problems of the file or folder at `place` for the group `gid`; None if there are none.

    is_kept_apart: its folder is sticky, so each user has their own files in it.
    """
    mode = found.st_mode
    reads_only = is_kept_apart or is_sealed(place)
    if stat.S_ISDIR(mode):
        wanted = GROUP_FOLDER_MODE & ~stat.S_IRWXU & ~(stat.S_IWGRP if reads_only or mode & stat.S_ISVTX else 0)
    else:
        # A file stays executable or not, and the group gets no more access than its owner.
        wanted = (mode & stat.S_IRWXU) >> 3 & ~(stat.S_IWGRP if reads_only else 0)
    open_to_all = bool(mode & _EVERYBODY_WRITES) and not mode & stat.S_ISVTX
    found_lack = Lack(found.st_gid != gid, wanted & ~mode, open_to_all)
    return found_lack if found_lack != Lack() else None


def place_in_run(folder: Path) -> str:
    """Return the path of `folder` (without links) from its run's output folder; empty outside of a run."""
    for one in (folder, *folder.parents):
        if one.name == STATE:
            return str(folder.relative_to(one.parent))
        with contextlib.suppress(OSError):  # not accessible to the caller
            if (one / STATE).is_dir():
                return "" if one == folder else str(folder.relative_to(one))
    return ""


def is_sealed(place: str) -> bool:
    """Return True if only the writer may change entries there."""
    return any(sealed in f"/{place}/" for sealed in _SEALED)
