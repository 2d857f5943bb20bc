"""Follow a growing log by polling, through rotation, truncation and creation.

Polling instead of inotify: appends from another node on a network file system raise no event here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.files.trusted import open_file, opened_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.line_text import Filter, Lines, blocks, end_of_whole_lines, last_lines, shown, start_of_last, whole
from opsctl.run.logs.lines import split_prefix
from opsctl.run.state.attempt_folder import rank_map
from trainer.formats.attempt.attempt_records import RANKS_FILES

#: Seconds between two checks.
POLL_S = 0.25


def follow(
    root: Path,
    path: Path,
    lines: int,
    say: Callable[[str], None],
    pause: Callable[[], None],
    wanted: Filter = whole,
) -> Iterator[str]:
    """Yield the last `lines` wanted lines of `path` under the run's folder `root`, then every new line, forever.

    Waits for the rest of an incomplete line; before a rotation or at a truncation it is yielded as it is. `say` gets
    messages for the user: there is no log yet, it was replaced, it was truncated. `pause` is called between checks.
    Raises OSError for an unreadable log.
    """
    fd, at, begun = _opened(root, path), 0, Lines()

    def new_lines() -> Iterator[str]:
        nonlocal at
        if fd is not None:
            for position, data in blocks(fd, at, os.fstat(fd).st_size):
                at = position
                yield from begun.feed(data)

    if fd is None:
        say(f"no log yet at {path}; waiting for it")
    else:
        at = start_of_last(fd, lines, end_of_whole_lines(fd), wanted)
    while True:
        before = at
        yield from shown(new_lines(), wanted)
        if at != before:
            continue
        # During a rotation there is no file for a moment: the old one is read until a new one appears.
        there = _opened(root, path)
        is_cut = fd is not None and os.fstat(fd).st_size < at
        is_new = there is not None and (fd is None or not os.path.samestat(os.fstat(there), os.fstat(fd)))
        if is_cut or is_new:
            yield from shown(new_lines(), wanted)
            yield from shown(begun.rest(), wanted)
            event = "is there now" if fd is None else "was truncated" if is_cut else "was replaced"
            fd, there, at = (there, fd, 0) if is_new else (fd, there, 0)
            say(f"{path} {event}; reading it from its beginning")
        else:
            pause()
        if there is not None:
            os.close(there)


def _opened(root: Path, path: Path) -> int | None:
    """Open the file again, because on a network file system an old descriptor may have an old size."""
    try:
        return open_file(root, path)
    except FileNotFoundError:
        return None


@dataclass(frozen=True)
class LogSource:
    """A log file, and the local rank whose lines to show without prefix; None: all lines unchanged."""

    root: Path  # the run's output folder
    path: Path
    local_rank: int | None = None

    def last(self, count: int) -> Iterator[str]:
        """Yield the last `count` lines. Raises OpsctlError if there is no file yet, OSError if it is unreadable."""
        try:
            with opened_file(self.root, self.path) as fd:
                yield from last_lines(fd, count, self._wanted)
        except FileNotFoundError:
            raise OpsctlError(
                f"no log yet at {self.path}. The first task writes it. To see what it waits for: opsctl status"
            ) from None

    def follow(self, count: int, say: Callable[[str], None], pause: Callable[[], None]) -> Iterator[str]:
        """Yield the last `count` lines and every new one, forever; see `opsctl.run.logs.follow`."""
        return follow(self.root, self.path, count, say, pause, self._wanted)

    def _wanted(self, line: str) -> str | None:
        if self.local_rank is None:
            return line
        local_rank, text = split_prefix(line)
        return text if local_rank == self.local_rank else None


def main_source(paths: RunPaths) -> LogSource:
    """Return the training log, with every line of every rank."""
    return LogSource(paths.output, paths.main_log)


def rank_source(paths: RunPaths, rank: int) -> LogSource:
    """Return the lines of `rank` in its node's output in the newest attempt. Raises OpsctlError if it has none."""
    folder = _newest_attempt_folder(paths)
    if folder is None:
        raise OpsctlError(f"no attempt has started its ranks yet: nothing under {paths.logs / 'attempts'}")
    places = rank_map(paths.output, folder)
    for place in places:
        if place.rank == rank and place.local_rank is not None:
            return LogSource(paths.output, folder / f"{place.node}.out", place.local_rank)
    has = f"ranks {places[0].rank} to {places[-1].rank}" if places else "no readable rank map"
    raise OpsctlError(f"no rank {rank} in attempt {folder.name}: it has {has} ({folder})")


def _newest_attempt_folder(paths: RunPaths) -> Path | None:
    """Return the attempt whose ranks started last, by time: job ids may start over on a new cluster."""
    started: list[tuple[float, Path]] = []
    for file in (paths.logs / "attempts").glob(f"*/{RANKS_FILES}"):
        try:
            started.append((file.stat().st_mtime, file.parent))
        except OSError:
            continue
    return max(started)[1] if started else None
