"""Walking through a run's output folder within a budget: what it uses, and what nobody has touched for long.

A walk that runs out of time goes on at the next look where it has stopped.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from opsctl.records.space import WalkFound, WalkState, read_walk, write_walk
from opsctl.runs.paths import RunPaths

#: Of one look: seconds, and entries of folders.
BUDGET_S, BUDGET_ENTRIES = 1.0, 20_000
#: A whole walk younger than this is not repeated.
WHOLE_FOR = timedelta(hours=6)
#: Until then it is what is told while the next one goes on; and one that took longer than this begins anew.
_STALE_AFTER = timedelta(days=2)
_DEEPEST = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BLOCK_BYTES = 512  # what st_blocks counts


def walked(paths: RunPaths, now: datetime, old_before: datetime | None) -> tuple[WalkFound, bool]:
    """What the output folder holds, and whether that is all of it. Files older than `old_before` are counted apart."""
    state = read_walk(paths)
    if state.whole is not None and timedelta(0) <= now - state.whole.began_at < WHOLE_FOR:
        return state.whole, True
    begun = state.begun
    if begun is None or not timedelta(0) <= now - begun.began_at < _STALE_AFTER:
        begun, state = WalkFound(began_at=now), msgspec.structs.replace(state, after=())
    found, after = _walk(paths.output, begun, state.after, old_before)
    if after is None:
        write_walk(paths, WalkState(whole=found))
        return found, True
    write_walk(paths, WalkState(whole=state.whole, begun=found, after=after))
    if state.whole is not None and timedelta(0) <= now - state.whole.began_at < _STALE_AFTER:
        return state.whole, True
    return found, False


def _walk(
    root: Path, found: WalkFound, after: tuple[str, ...], old_before: datetime | None
) -> tuple[WalkFound, tuple[str, ...] | None]:
    """`found` with what comes after `after`, and the last entry; None in its place where all is seen."""
    ends_at = time.monotonic() + BUDGET_S
    old_s = old_before.timestamp() if old_before is not None else None
    used, inodes, old, old_bytes = found.used_bytes, found.used_inodes, found.old_files, found.old_bytes
    oldest_s, oldest = (found.oldest_at.timestamp() if found.oldest_at else None), found.oldest
    last: tuple[str, ...] | None = None
    for number, (place, seen) in enumerate(_entries(root, after, ())):
        used, inodes = used + seen.st_blocks * _BLOCK_BYTES, inodes + 1
        touched_s = max(seen.st_atime, seen.st_mtime)
        if old_s is not None and touched_s < old_s and stat.S_ISREG(seen.st_mode):
            old, old_bytes = old + 1, old_bytes + seen.st_size
            if oldest_s is None or touched_s < oldest_s:
                oldest_s, oldest = touched_s, str(root.joinpath(*place))
        if number + 1 >= BUDGET_ENTRIES or (number % 100 == 99 and time.monotonic() >= ends_at):
            last = place
            break
    at = datetime.fromtimestamp(oldest_s, UTC) if oldest_s is not None else None
    counted = WalkFound(
        began_at=found.began_at,
        used_bytes=used,
        used_inodes=inodes,
        old_files=old,
        old_bytes=old_bytes,
        oldest_at=at,
        oldest=oldest,
    )
    return counted, last


def _entries(
    root: Path, after: tuple[str, ...], place: tuple[str, ...], within: int | None = None
) -> Iterator[tuple[tuple[str, ...], os.stat_result]]:
    """(path from the root on, what stat says) of all under `root` that comes after `after`, in order of names.

    within: the folder that has the last of `place`. No link is followed, whatever takes a folder's place meanwhile;
    what vanishes, or may not be looked into, is passed over.
    """
    if len(place) >= _DEEPEST:
        return
    try:
        if within is None:
            folder = os.open(root, _FOLDER)
        else:
            folder = os.open(place[-1], _FOLDER | os.O_NOFOLLOW, dir_fd=within)
    except OSError:
        return
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda one: one.name)
        for entry in entries:
            is_on_the_way = bool(after) and entry.name == after[0]
            if after and entry.name < after[0]:
                continue
            try:
                seen, is_folder = entry.stat(follow_symlinks=False), entry.is_dir(follow_symlinks=False)
            except OSError:
                continue
            here = (*place, entry.name)
            if not is_on_the_way:
                yield here, seen
            if is_folder:
                yield from _entries(root, after[1:] if is_on_the_way else (), here, folder)
    except OSError:
        return
    finally:
        os.close(folder)
