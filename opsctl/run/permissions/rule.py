"""What a file or folder of a group's lacks, by its mode and by where in a run it is.

The rule is the run's own (`records.group_folder`): folders are the group's with its members' files in them (2770), and
what the owner of a file may do with it the group may. Nothing is opened to everybody, and where opsctl keeps things
that only one may change, the group is only to read.
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
#: The folder by which a run's output folder is known.
STATE = _RUN.state.name
#: What was published, and who asked for what: nobody but who made it may change it.
_SEALED = tuple(f"/{path.relative_to(_RUN.output)}/" for path in (_RUN.revisions, _RUN.requests))
_GROUP, _EVERYBODY_WRITES = 0o070, 0o002


@dataclass(frozen=True)
class Lack:
    """What is wrong with one entry."""

    group: bool = False  # it is another group's
    mode: int = 0  # bits that are missing
    open_to_all: bool = False  # everybody may write it

    def words(self, is_folder: bool) -> tuple[str, ...]:
        """One of a few sentences for each thing that is wrong."""
        of_group = "its group may not read, write and enter it" if is_folder else "its group may not read and write it"
        told = (
            (self.group, "belongs to another group"),
            (bool(self.mode & _GROUP), of_group),
            (bool(self.mode & stat.S_ISGID), "what is made in it is not the group's (no setgid bit)"),
            (self.open_to_all, "everybody may write it"),
        )
        return tuple(words for is_so, words in told if is_so)

    def fixed(self, mode: int) -> int:
        """The mode that it is to have, of the one it has."""
        return (stat.S_IMODE(mode) | self.mode) & ~(_EVERYBODY_WRITES if self.open_to_all else 0)


def left_to_its_owner(seen: os.stat_result) -> str:
    """Return why only its owner, who names it, should open a file; empty where nothing is special about it.

    With a second name it may be a file of theirs that is stored elsewhere.
    """
    if stat.S_ISDIR(seen.st_mode):
        return ""
    if seen.st_nlink > 1:
        return "it has a second name (a hard link): replace it by a copy first"
    return "it runs as its owner (setuid): chmod u-s first" if seen.st_mode & stat.S_ISUID else ""


def lack(gid: int, place: str, found: os.stat_result, is_kept_apart: bool) -> Lack | None:
    """What the file or folder at `place` lacks to be the group `gid`'s; None where nothing is wrong.

    is_kept_apart: the folder that it is in is one where everybody keeps his own (sticky).
    """
    mode = found.st_mode
    reads_only = is_kept_apart or is_sealed(place)
    if stat.S_ISDIR(mode):
        wanted = GROUP_FOLDER_MODE & ~stat.S_IRWXU & ~(stat.S_IWGRP if reads_only or mode & stat.S_ISVTX else 0)
    else:
        # A file keeps whether it is a program, and what its owner may not write the group may not either.
        wanted = (mode & stat.S_IRWXU) >> 3 & ~(stat.S_IWGRP if reads_only else 0)
    open_to_all = bool(mode & _EVERYBODY_WRITES) and not mode & stat.S_ISVTX
    found_lack = Lack(found.st_gid != gid, wanted & ~mode, open_to_all)
    return found_lack if found_lack != Lack() else None


def place_in_run(folder: Path) -> str:
    """Where `folder` (without links) is, from the output folder of the run on that it is in; empty in none."""
    for one in (folder, *folder.parents):
        if one.name == STATE:
            return str(folder.relative_to(one.parent))
        with contextlib.suppress(OSError):  # closed to the caller
            if (one / STATE).is_dir():
                return "" if one == folder else str(folder.relative_to(one))
    return ""


def is_sealed(place: str) -> bool:
    """Whether that is for nobody but its maker to change."""
    return any(sealed in f"/{place}/" for sealed in _SEALED)
