"""The use of the run's file systems, the run's own use, and the files about to be purged.

A walk that runs out of time continues at the next call.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from opsctl.core.dirwalk.file_system import FileSystems
from opsctl.core.dirwalk.parallel import Budget, walk
from opsctl.core.dirwalk.sequential import BEGINNING, Folder, Pending, Visitor, share_of_bytes, touched_at_s, under
from opsctl.core.errors import OpsctlError
from opsctl.core.files.trusted import listed_within, opened_folder
from opsctl.monitoring.gather import Asked
from opsctl.monitoring.gather.quota import quotas
from opsctl.monitoring.snapshot import Part, Purge, Snapshot, Space
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.profile import watch_table
from opsctl.run.config.schema import WatchTable
from opsctl.run.state.space import SpaceLine, WalkFound, WalkState, append_space, read_space, read_walk, write_walk
from trainer.formats.checkpoint.manifest import latest_folder
from trainer.formats.errors import CheckpointError

#: Files are reported so long before the file system removes them.
NOTICE = timedelta(days=7)


def spaces(seen: Snapshot, asked: Asked) -> Snapshot:
    """Fill Part.SPACE and Part.PURGE."""
    paths, file = asked.paths, asked.run.file
    watch = watch_table(file) if file else WatchTable()
    old_before = None
    if watch.purge_days is not None:
        old_before = seen.now - (timedelta(days=watch.purge_days) - min(NOTICE, timedelta(days=watch.purge_days) / 2))
    systems = FileSystems()
    hangs = systems.problem(paths.output)
    found, is_all = (WalkFound(began_at=seen.now), False) if hangs else walked(paths, seen.now, old_before)
    if Part.SPACE in asked.parts:
        found_in = list(_filled(asked, watch, systems, hangs, seen.now))
        if not hangs:
            how = "walk" if is_all else "part of a walk"
            own = f"{paths.output} (this run)"
            found_in.append(Space(own, seen.now, used_bytes=found.used_bytes, used_inodes=found.used_inodes, how=how))
        history = () if hangs else tuple(_space(line) for line in read_space(paths))
        seen = replace(seen, spaces=tuple(found_in), space_history=history)
    if Part.PURGE in asked.parts and old_before is not None and watch.purge_days is not None:
        if hangs:
            raise OpsctlError(hangs)
        seen = replace(seen, purge=_purge(paths, found, is_all, old_before, timedelta(days=watch.purge_days)))
    return seen


def remember(paths: RunPaths, snapshot: Snapshot) -> None:
    """Record the use of the file systems, so that growth can be computed. Raises OSError."""
    looks = [_line(one) for one in snapshot.spaces if not one.problem and one.how != "part of a walk"]
    if looks:
        append_space(paths, looks, snapshot.now)


def _filled(asked: Asked, watch: WatchTable, systems: FileSystems, hangs: str, now: datetime) -> Iterable[Space]:
    base = asked.run.loaded.folder if asked.run.loaded else asked.paths.output
    named = {asked.paths.output: str(asked.paths.output)}
    for one in watch.filesystems:
        folder = base / Path(os.path.expandvars(one)).expanduser()
        # As written: what the reader's variables hold is nothing for those who read the run's records and alerts.
        named.setdefault(folder, str(folder) if os.path.expandvars(one) == one else one)
    folders = list(named)
    try:
        told = quotas(folders, now)
    except OpsctlError as error:
        told = [Space("quota", now, how="quota", problem=str(error))]
    yield from told or ()
    for folder in folders:
        there = folder
        while not hangs and folder == asked.paths.output and there != there.parent and not there.exists():
            there = there.parent  # a run that was never submitted has no folder yet
        filled = systems.filled(there)
        yield Space(
            name=named[folder],
            at=now,
            used_bytes=filled.used_bytes,
            limit_bytes=filled.limit_bytes,
            used_inodes=filled.used_inodes,
            limit_inodes=filled.limit_inodes,
            how="statvfs",
            problem=filled.problem,
        )


def _purge(
    paths: RunPaths, found: WalkFound, is_all: bool, old_before: datetime, purge_after: timedelta
) -> Purge | None:
    """Return the files about to be removed. Of the latest checkpoint every file is checked, in any state of the
    walk.
    """
    oldest, example, hits_latest = found.oldest_at, found.oldest, False
    first = _oldest_of_latest(paths, old_before)
    if first is not None:
        hits_latest, example = True, first[1]
        oldest = first[0] if oldest is None else min(oldest, first[0])
    if oldest is None:
        return None
    return Purge(
        folder=str(paths.output),
        files=max(found.old_files, int(hits_latest)),
        size_bytes=found.old_bytes,
        first_at=(oldest + purge_after).astimezone(),
        example=example,
        is_all=is_all,
        hits_latest=hits_latest,
    )


def _oldest_of_latest(paths: RunPaths, old_before: datetime) -> tuple[datetime, str] | None:
    """Return the file of the latest checkpoint that was unused for longest, with its time."""
    try:
        folder = latest_folder(paths.checkpoints)
        if folder is None:
            return None
        with opened_folder(paths.output, folder) as (
            within,
            _,
        ):  # through no link, because the names of its files are printed
            stats = {name: os.stat(name, dir_fd=within, follow_symlinks=False) for name in listed_within(within)}
        touched = [(max(seen.st_atime, seen.st_mtime), str(folder / name)) for name, seen in stats.items()]
    except (CheckpointError, OSError):
        return None
    old = [(at, path) for at, path in touched if at < old_before.timestamp()]
    return (datetime.fromtimestamp(min(old)[0], UTC), min(old)[1]) if old else None


def _space(line: SpaceLine) -> Space:
    return Space(**msgspec.structs.asdict(line))


def _line(space: Space) -> SpaceLine:
    return SpaceLine(**{name: getattr(space, name) for name in SpaceLine.__struct_fields__})


#: Of one look: seconds, entries of folders, processes.
BUDGET_S, BUDGET_ENTRIES, PROCESSES = 1.0, 20_000, 2
#: A whole walk younger than this is not repeated.
WHOLE_FOR = timedelta(hours=6)
#: Until then it is shown while the next one continues; one that took longer than this starts again.
_STALE_AFTER = timedelta(days=2)


def walked(paths: RunPaths, now: datetime, old_before: datetime | None) -> tuple[WalkFound, bool]:
    """Return the contents of the output folder, and whether they are complete; files older than `old_before` apart."""
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
    """Continue the walk; return what was found so far and the folders that are left."""
    parts = [found]
    visitor = _Counting(root, found.began_at, old_before.timestamp() if old_before is not None else float("-inf"))
    try:
        done = walk(root, visitor, parts.append, Budget(BUDGET_S, BUDGET_ENTRIES, PROCESSES), pending)
    except OSError:  # not there yet
        return found, ()
    return _together(parts), done.pending


@dataclass
class _Counting(Visitor[WalkFound]):
    """A visitor that counts files and bytes."""

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
        """Return what was counted since the last call."""
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
