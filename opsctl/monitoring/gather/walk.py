"""Walking through a run's output folder within a budget: what it uses, and what nobody has touched for long.

A walk that runs out of time goes on at the next look where it has stopped.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from opsctl.core.dirwalk.parallel import Budget, walk
from opsctl.core.dirwalk.sequential import BEGINNING, Folder, Pending, Visitor, share_of_bytes, touched_at_s, under
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.space import WalkFound, WalkState, read_walk, write_walk

#: Of one look: seconds, entries of folders, processes.
BUDGET_S, BUDGET_ENTRIES, PROCESSES = 1.0, 20_000, 2
#: A whole walk younger than this is not repeated.
WHOLE_FOR = timedelta(hours=6)
#: Until then it is what is told while the next one goes on; and one that took longer than this begins anew.
_STALE_AFTER = timedelta(days=2)


def walked(paths: RunPaths, now: datetime, old_before: datetime | None) -> tuple[WalkFound, bool]:
    """What the output folder holds, and whether that is all of it. Files older than `old_before` are counted apart."""
    state = read_walk(paths)
    if state.whole is not None and timedelta(0) <= now - state.whole.began_at < WHOLE_FOR:
        return state.whole, True
    begun, pending = state.begun, state.pending
    if begun is None or not pending or not timedelta(0) <= now - begun.began_at < _STALE_AFTER:
        begun, pending = WalkFound(began_at=now), BEGINNING
    found, pending = _walk(paths.output, begun, pending, old_before)
    if not pending:
        write_walk(paths, WalkState(whole=found))
        return found, True
    write_walk(paths, WalkState(whole=state.whole, begun=found, pending=pending))
    if state.whole is not None and timedelta(0) <= now - state.whole.began_at < _STALE_AFTER:
        return state.whole, True
    return found, False


def _walk(
    root: Path, found: WalkFound, pending: tuple[Pending, ...], old_before: datetime | None
) -> tuple[WalkFound, tuple[Pending, ...]]:
    """`found` with what this look has seen of what is pending, and what is pending still."""
    parts = [found]
    visitor = _Counting(root, found.began_at, old_before.timestamp() if old_before is not None else float("-inf"))
    try:
        done = walk(root, visitor, parts.append, Budget(BUDGET_S, BUDGET_ENTRIES, PROCESSES), pending)
    except OSError:  # not there yet
        return found, ()
    return _together(parts), done.pending


@dataclass
class _Counting(Visitor[WalkFound]):
    """A visitor that counts what there is."""

    root: Path
    began_at: datetime
    old_before_s: float
    used_bytes: int = 0
    used_inodes: int = 0
    old_files: int = 0
    old_bytes: int = 0
    oldest_s: float = float("inf")
    oldest: str = ""

    def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
        """Count this one."""
        self.used_bytes += share_of_bytes(seen)
        self.used_inodes += 1
        touched_s = touched_at_s(seen)
        if touched_s < self.old_before_s and stat.S_ISREG(seen.st_mode):
            self.old_files, self.old_bytes = self.old_files + 1, self.old_bytes + seen.st_size
            if touched_s < self.oldest_s:
                self.oldest_s, self.oldest = touched_s, str(self.root / under(folder.place, name))

    def take(self) -> WalkFound:
        """What has been counted since this was asked last."""
        counted = WalkFound(
            began_at=self.began_at,
            used_bytes=self.used_bytes,
            used_inodes=self.used_inodes,
            old_files=self.old_files,
            old_bytes=self.old_bytes,
            oldest_at=datetime.fromtimestamp(self.oldest_s, UTC) if self.oldest else None,
            oldest=self.oldest,
        )
        self.used_bytes = self.used_inodes = self.old_files = self.old_bytes = 0
        self.oldest_s, self.oldest = float("inf"), ""
        return counted


def _together(parts: list[WalkFound]) -> WalkFound:
    told = [part for part in parts if part.oldest_at is not None]
    first = min(told, key=lambda part: part.oldest_at or part.began_at, default=parts[0])
    return msgspec.structs.replace(
        first,
        used_bytes=sum(part.used_bytes for part in parts),
        used_inodes=sum(part.used_inodes for part in parts),
        old_files=sum(part.old_files for part in parts),
        old_bytes=sum(part.old_bytes for part in parts),
    )
