"""Which file shows what was asked for: the training log, or one rank's lines in its node's output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.files.trusted import open_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.follow import follow
from opsctl.run.logs.lines import split_prefix
from opsctl.run.logs.tail import last_lines
from opsctl.run.state.attempt_folder import rank_map
from trainer.formats.attempt.attempt_records import RANKS_FILES


@dataclass(frozen=True)
class LogSource:
    """A file, and the local rank whose lines are wanted, without their prefix; None: every line as it stands."""

    root: Path  # the run's output folder
    path: Path
    local_rank: int | None = None

    def last(self, count: int) -> Iterator[str]:
        """The last `count` lines. Raises OpsctlError when there is no file yet, OSError for one that cannot be read."""
        try:
            fd = open_file(self.root, self.path)
        except FileNotFoundError:
            raise OpsctlError(
                f"no log yet at {self.path}: the first task writes it; opsctl status says what it waits for"
            ) from None
        try:
            yield from last_lines(fd, count, self._wanted)
        finally:
            os.close(fd)

    def follow(self, count: int, say: Callable[[str], None], pause: Callable[[], None]) -> Iterator[str]:
        """The last `count` lines and every one that comes, for ever; see `opsctl.run.logs.follow`."""
        return follow(self.root, self.path, count, say, pause, self._wanted)

    def _wanted(self, line: str) -> str | None:
        if self.local_rank is None:
            return line
        local_rank, text = split_prefix(line)
        return text if local_rank == self.local_rank else None


def main_source(paths: RunPaths) -> LogSource:
    """The training log: every line of every rank."""
    return LogSource(paths.output, paths.main_log)


def rank_source(paths: RunPaths, rank: int) -> LogSource:
    """The output of the node that has `rank` in the newest attempt, for that rank alone.

    Raises OpsctlError when no attempt has started ranks yet or the newest has no such rank.
    """
    folder = _newest_attempt_folder(paths)
    if folder is None:
        raise OpsctlError(f"no attempt has started its ranks yet: nothing under {paths.logs / 'attempts'}")
    places = rank_map(paths.output, folder)
    for place in places:
        if place.rank == rank and place.local_rank is not None:
            return LogSource(paths.output, folder / f"{place.node}.out", place.local_rank)
    has = f"ranks {places[0].rank} to {places[-1].rank}" if places else "none that can be read"
    raise OpsctlError(f"no rank {rank} in attempt {folder.name}: it has {has} ({folder})")


def _newest_attempt_folder(paths: RunPaths) -> Path | None:
    """The one whose ranks started last; job ids may start over on a new cluster, so times decide."""
    started: list[tuple[float, Path]] = []
    for file in (paths.logs / "attempts").glob(f"*/{RANKS_FILES}"):
        try:
            started.append((file.stat().st_mtime, file.parent))
        except OSError:
            continue
    return max(started)[1] if started else None
