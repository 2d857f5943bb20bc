"""Locks that torch leaves in its folder of compiled extensions: everybody who comes later waits for one for ever.

torch makes a file `lock` when it begins to compile an extension and removes it when it is done; it says nobody's name,
and a process that was killed leaves it. Whose it is says its owner; whether that process is still there can be seen on
its own host only, and where nothing has changed beside it for an hour nobody compiles there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.account import account_name

#: torch's name for it.
LOCK = "lock"
#: Compiling one extension takes minutes, and writes as it goes.
DEAD_AFTER_S = 3600.0
_DEEPEST = 4


@dataclass(frozen=True)
class ExtensionLock:
    """One of them."""

    path: Path
    owner: str
    is_own: bool
    age_s: float  # since anything changed beside it
    is_held_here: bool  # a process of this host has it open

    @property
    def is_dead(self) -> bool:
        """Whether nobody compiles there any more, as far as that can be told."""
        return not self.is_held_here and self.age_s > DEAD_AFTER_S


def find_locks(folder: Path, now_s: float | None = None) -> list[ExtensionLock]:
    """Every lock under torch's folder of extensions, by name. now_s: since the epoch; default: now."""
    now_s = time.time() if now_s is None else now_s
    held = set(_open_files()) if folder.is_dir() else set()
    found = []
    for path in sorted(_locks(folder)):
        try:
            about = path.stat()
            newest = max(
                [about.st_mtime, *(entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(path.parent))]
            )
        except OSError:
            continue  # it is done
        key = (about.st_dev, about.st_ino)
        own = about.st_uid == os.geteuid()
        found.append(ExtensionLock(path, account_name(about.st_uid), own, now_s - newest, key in held))
    return found


def _locks(folder: Path) -> Iterator[Path]:
    for at, folders, files in os.walk(folder):
        if len(Path(at).relative_to(folder).parts) >= _DEEPEST:
            folders.clear()
        if LOCK in files:
            yield Path(at, LOCK)


def _open_files() -> Iterator[tuple[int, int]]:
    """(device, inode) of every file named `lock` that a process has open that we may look into."""
    for process in Path("/proc").glob("[0-9]*/fd"):
        try:
            for entry in os.scandir(process):
                if os.readlink(entry.path).endswith(f"/{LOCK}"):  # noqa: PTH115 - of a process that may go any moment
                    found = os.stat(entry.path)  # noqa: PTH116
                    yield found.st_dev, found.st_ino
        except OSError:
            continue
