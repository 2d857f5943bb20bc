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
    source = _Source(root, path)
    if source.find():
        source.skip_to_last(lines, wanted)
    else:
        say(f"no log yet at {path}; waiting for it")
    while True:
        yield from shown(source.new_lines(), wanted)
        if not source.is_idle:
            continue
        event = source.moved()
        if event:
            yield from shown(source.rest(), wanted)
            source.restart()
            say(f"{path} {event}")
        else:
            pause()


class _Source:
    def __init__(self, root: Path, path: Path) -> None:
        self.root, self.path = root, path
        self.fd: int | None = None
        self.next_fd: int | None = None  # the file that replaced `fd`
        self.at = 0
        self.lines = Lines()
        self.is_idle = True

    def find(self) -> bool:
        """Open the log, and return True if there is one."""
        self.fd = self._opened()
        return self.fd is not None

    def skip_to_last(self, count: int, wanted: Filter) -> None:
        """Start at the last `count` whole lines; an incomplete line follows when it is complete."""
        if self.fd is not None:
            self.at = start_of_last(self.fd, count, end_of_whole_lines(self.fd), wanted)

    def new_lines(self) -> Iterator[str]:
        """Yield the lines written since the last check."""
        self.is_idle = True
        if self.fd is not None:
            for at, data in blocks(self.fd, self.at, os.fstat(self.fd).st_size):
                self.at, self.is_idle = at, False
                yield from self.lines.feed(data)

    def moved(self) -> str:
        """Return a message if the file was created, replaced or truncated; else an empty text."""
        if self.fd is None:
            self.next_fd = self._opened()
            return "" if self.next_fd is None else "is there now"
        here = os.fstat(self.fd)
        if here.st_size < self.at:
            return "was truncated; reading it from its beginning"
        there = self._opened()
        if there is None:
            # During a rotation there is no file for a moment: keep reading the old one until a new one appears.
            return ""
        if os.path.samestat(os.fstat(there), here):
            os.close(there)
            return ""
        self.next_fd = there
        return "was replaced; reading the new one"

    def rest(self) -> Iterator[str]:
        """Yield the remaining lines of a file that does not continue, including an incomplete one."""
        yield from self.new_lines()
        yield from self.lines.rest()

    def restart(self) -> None:
        """Read the current file from its beginning."""
        if self.next_fd is not None:
            if self.fd is not None:
                os.close(self.fd)
            self.fd, self.next_fd = self.next_fd, None
        self.at = 0

    def _opened(self) -> int | None:
        """Open the file again, because on a network file system an old descriptor may have an old size."""
        try:
            return open_file(self.root, self.path)
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
