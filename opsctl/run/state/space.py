"""The use of a run's file systems over time: `.opsctl/space.jsonl`, and the progress of the walk through its folder.

The history is thinned as it ages, so that it stays small over months: all records of two days, one in six hours of a
month, one a day of half a year.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from opsctl.core.dirwalk.sequential import Pending
from opsctl.core.files.state_files import append_bytes, read_lines, read_state, write_atomically, write_state
from opsctl.run.config.paths import RunPaths
from trainer.formats.json_text import Moment, json_line

#: (age up to which, one line of each so long); older lines go.
_KEPT = (
    (timedelta(days=2), timedelta(minutes=10)),
    (timedelta(days=30), timedelta(hours=6)),
    (timedelta(days=180), timedelta(days=1)),
)
#: A line from further ahead than this was written by a clock that was wrong.
_AHEAD = timedelta(days=1)
#: Looks closer together than this are one: several people's commands look too.
_LEAST = timedelta(minutes=10)
#: Fewer lines than this are not rewritten.
_FEW = 200


class SpaceLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look at one file system or quota."""

    name: str
    at: Moment
    used_bytes: int | None = None
    limit_bytes: int | None = None
    used_inodes: int | None = None
    limit_inodes: int | None = None
    percent: float | None = None
    inode_percent: float | None = None
    how: str = ""


class WalkFound(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a walk, complete or so far."""

    began_at: Moment
    used_bytes: int = 0
    used_inodes: int = 0
    old_files: int = 0  # that were not used for long
    old_bytes: int = 0
    oldest_at: Moment | None = None  # when the first of those was read or written last
    oldest: str = ""  # its path


class WalkState(msgspec.Struct, frozen=True, kw_only=True):
    """`.opsctl/walk.json`."""

    whole: WalkFound | None = None
    begun: WalkFound | None = None
    pending: tuple[Pending, ...] = ()  # what `begun` does not have yet


def read_space(paths: RunPaths) -> list[SpaceLine]:
    """Earlier looks, oldest first. Raises OSError where they cannot be read."""
    return read_looks(paths.output, paths.space)


def append_space(paths: RunPaths, looks: Iterable[SpaceLine], now: datetime) -> None:
    """`append_looks` to the run's."""
    append_looks(paths.output, paths.space, looks, now)


def read_looks(root: Path, path: Path) -> list[SpaceLine]:
    """Earlier looks in the file `path`, oldest first. Raises OSError where they cannot be read."""
    return sorted(read_lines(root, path, SpaceLine), key=lambda line: line.at)


def append_looks(root: Path, path: Path, looks: Iterable[SpaceLine], now: datetime) -> None:
    """Add checks that are not right after one of the same, and thin old ones. Raises OSError."""
    known = read_looks(root, path)
    last = {line.name: line.at for line in known if line.at <= now}
    news = [one for one in looks if one.name not in last or one.at - last[one.name] >= _LEAST]
    kept = thinned([*known, *news], now)
    if len(known) > _FEW and len(kept) < 0.7 * (len(known) + len(news)):
        write_atomically(root, path, "".join(f"{json_line(one)}\n" for one in kept))
    elif news:
        append_bytes(root, path, "".join(f"{json_line(one)}\n" for one in news).encode())


def thinned(lines: Sequence[SpaceLine], now: datetime) -> list[SpaceLine]:
    """Return the kept `lines`, oldest first: of each name the first in each stretch of time."""
    kept: dict[tuple[str, timedelta, int], SpaceLine] = {}
    for line in sorted(lines, key=lambda one: one.at):
        age = now - line.at
        each = next((each for most, each in _KEPT if age <= most), None)
        if each is not None and age >= -_AHEAD:
            kept.setdefault((line.name, each, int(line.at.timestamp() // each.total_seconds())), line)
    return sorted(kept.values(), key=lambda one: one.at)


def read_walk(paths: RunPaths) -> WalkState:
    """Return the progress of the walk; an empty one if it cannot be read."""
    return read_state(paths.output, paths.walk, WalkState) or WalkState()


def write_walk(paths: RunPaths, state: WalkState) -> None:
    """Store the progress; if this fails, the next walk starts from the beginning."""
    with contextlib.suppress(OSError):
        write_state(paths.output, paths.walk, state)
