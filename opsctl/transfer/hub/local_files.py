"""The files here that may go to a repository: names, sizes and times, nothing opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PureWindowsPath

from opsctl.run.config.file_kinds import is_passing
from opsctl.run.config.paths import RunPaths

#: A text that grows is cut to whole lines until it has rested for so long.
SETTLED_S = 600.0
#: Names that no repository takes, in whatever case: those of the client, and what some file system takes for git's own.
_NEVER = frozenset((".git", "git~1", ".cache", ".huggingface"))
#: Kinds whose files are lines.
KINDS_OF_LINES = ("logs", "carbon")


@dataclass(frozen=True)
class SeenFile:
    """A file as a look at its folder found it. path: from the output folder on, which is its name over there too."""

    path: str
    kind: str
    size: int
    mtime_ns: int

    @property
    def is_lines(self) -> bool:
        """Whether it is sent by whole lines."""
        return self.kind in KINDS_OF_LINES

    def has_settled(self, now_s: float) -> bool:
        """Whether nobody has written to it for a while."""
        return now_s - self.mtime_ns / 1e9 > SETTLED_S


@dataclass(frozen=True)
class Look:
    """What was found of one kind, and names that no repository takes. is_there: its folder could be seen.

    unseen: folders below it that could not be.
    """

    files: tuple[SeenFile, ...] = ()
    unnameable: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    is_there: bool = True


def look_at(paths: RunPaths, kind: str, folder: Path, patterns: tuple[str, ...]) -> Look:
    """Return the plain files under the kind's folder whose names match.

    Links are not followed and not sent; neither are locks and files that are still being written.
    """
    if not folder.is_dir():
        return Look(is_there=False)
    files, unnameable = [], []
    unseen: list[str] = []
    for entry in _files_under(str(folder), unseen):
        below = os.path.relpath(entry.path, folder)
        if is_passing(entry.name) or not any(fnmatchcase(below, pattern) for pattern in patterns):
            continue
        path = os.path.relpath(entry.path, paths.output)
        if not _can_be_named(path):
            unnameable.append(path)
            continue
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        files.append(SeenFile(path, kind, found.st_size, found.st_mtime_ns))
    closed = tuple(os.path.relpath(one, paths.output) for one in sorted(unseen))
    return Look(tuple(sorted(files, key=lambda one: one.path)), tuple(sorted(unnameable)), closed)


def _files_under(folder: str, unseen: list[str]) -> Iterator[os.DirEntry[str]]:
    """Folders below that cannot be listed are put into `unseen`; raises OSError for `folder` itself."""
    folders = [folder]
    while folders:
        at = folders.pop()
        try:
            with os.scandir(at) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry
        except FileNotFoundError:
            continue  # it went this moment
        except OSError:
            if at == folder:
                raise
            unseen.append(at)


def _can_be_named(path: str) -> bool:
    r"""Whether a repository can have a file of this name, and everybody can download and clone it all the same.

    Not what is no UTF-8 or in a folder of git's or the client's own; nor `a:b` and `\`, which lead out of a folder on
    Windows: there is a client that refuses a whole repository with such a name, wherever it runs.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    parts = path.split("/")
    return "\\" not in path and not any(
        part.lower().rstrip(" .") in _NEVER or PureWindowsPath(part).drive for part in parts
    )
