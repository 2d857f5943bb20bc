"""Find stale locks in torch's folder of compiled extensions, for which every later process would wait forever.

torch creates a file `lock` when it begins to compile an extension and removes it at the end. A killed process leaves
it. A lock is stale if no process of this host has it open and nothing next to it has changed for an hour.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.account import account_name
from opsctl.core.errors import file_problem

LOCK = "lock"  # torch's name
DEAD_AFTER_S = 3600.0
_DEEPEST = 4


@dataclass(frozen=True)
class ExtensionLock:
    """One lock of an extension."""

    path: Path
    owner: str
    is_own: bool
    age_s: float  # since the last change next to it
    is_held_here: bool  # a process of this host has it open

    @property
    def is_dead(self) -> bool:
        """Return True if no process compiles there, as far as this host can tell."""
        return not self.is_held_here and self.age_s > DEAD_AFTER_S


def find_locks(folder: Path, now_s: float | None = None) -> list[ExtensionLock]:
    """Return every lock under torch's folder of extensions, by name. now_s: since the epoch; default: now."""
    now_s = time.time() if now_s is None else now_s
    held = set(_open_files()) if folder.is_dir() else set()
    found = []
    for path in sorted(_locks(folder)):
        try:
            status = path.stat()
            beside = [one.stat(follow_symlinks=False).st_mtime for one in os.scandir(path.parent)]
        except OSError:
            continue  # removed meanwhile
        is_held, is_own = (status.st_dev, status.st_ino) in held, status.st_uid == os.geteuid()
        found.append(ExtensionLock(path, account_name(status.st_uid), is_own, now_s - max(beside), is_held))
    return found


def remove_dead(locks: Sequence[ExtensionLock]) -> list[str]:
    """Remove the caller's stale locks. Returns one line for each, with the error if it cannot be removed."""
    lines = []
    for lock in locks:
        if lock.is_dead and lock.is_own:
            try:
                lock.path.unlink()
                lines.append(f"removed {lock.path}")
            except OSError as error:
                lines.append(f"could not remove {file_problem(error, lock.path)}")
    return lines


def _locks(folder: Path) -> Iterator[Path]:
    for at, folders, files in os.walk(folder):
        if len(Path(at).relative_to(folder).parts) >= _DEEPEST:
            folders.clear()
        if LOCK in files:
            yield Path(at, LOCK)


def _open_files() -> Iterator[tuple[int, int]]:
    """Yield (device, inode) of every file named `lock` that a process has open, where the caller may see it."""
    for process in Path("/proc").glob("[0-9]*/fd"):
        try:
            for entry in os.scandir(process):
                if os.readlink(entry.path).endswith(f"/{LOCK}"):  # noqa: PTH115 - of a process that may end at any time
                    found = os.stat(entry.path)  # noqa: PTH116
                    yield found.st_dev, found.st_ino
        except OSError:
            continue
