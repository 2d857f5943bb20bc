"""What a file system will remove because nobody has read or written it for long: what goes when.

The list may be long, so it is written as it is found; what is held is a number for each day and for each checkpoint.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.core.dirwalk.parallel import walk
from opsctl.core.dirwalk.sequential import Folder, Visitor, Walked, touched_at_s, under
from opsctl.core.errors import OpsctlError, file_problem
from trainer.formats.checkpoint.manifest import iteration_of


@dataclass(frozen=True)
class Going:
    """A file that is about to be removed."""

    place: str
    goes_at_s: float
    size_bytes: int


@dataclass
class Finding(Visitor[list[Going]]):
    """A visitor that finds files which nobody has touched for so long that they go before `until_s`."""

    purge_after_s: float
    until_s: float
    found: list[Going] = field(default_factory=list)

    def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
        """One entry."""
        goes_at_s = max(0.0, touched_at_s(seen) + self.purge_after_s)  # some file systems keep any time at all
        if goes_at_s < self.until_s and stat.S_ISREG(seen.st_mode):
            self.found.append(Going(under(folder.place, name), goes_at_s, seen.st_size))

    def take(self) -> list[Going]:
        """What was found since this was asked last."""
        found, self.found = self.found, []
        return found


@dataclass
class Sum:
    """Files that go, together."""

    files: int = 0
    size_bytes: int = 0
    first_at: datetime | None = None

    def add(self, one: Going) -> None:
        """One more."""
        at = datetime.fromtimestamp(one.goes_at_s, UTC)
        self.files, self.size_bytes = self.files + 1, self.size_bytes + one.size_bytes
        self.first_at = at if self.first_at is None else min(self.first_at, at)


@dataclass
class Purged:
    """What goes when."""

    days: dict[str, Sum] = field(default_factory=dict)  # local date -> what goes on it
    checkpoints: dict[str, Sum] = field(default_factory=dict)  # place of one that would be damaged -> its files
    everything: Sum = field(default_factory=Sum)


def find_purged(
    folder: Path, purge_after: timedelta, within: timedelta, now: datetime, each: Callable[[Going], None]
) -> tuple[Purged, Walked]:
    """Walk through `folder`, once, and say what goes within that time; every file is handed to `each`.

    Raises OpsctlError where it cannot be opened.
    """
    found = Purged()

    def take_in(going: list[Going]) -> None:
        for one in going:
            day = datetime.fromtimestamp(max(one.goes_at_s, now.timestamp()), UTC).astimezone().date().isoformat()
            found.days.setdefault(day, Sum()).add(one)
            found.everything.add(one)
            checkpoint = checkpoint_of(one.place)
            if checkpoint is not None:
                found.checkpoints.setdefault(checkpoint, Sum()).add(one)
            each(one)

    finding = Finding(purge_after.total_seconds(), (now + within).timestamp())
    try:
        return found, walk(folder, finding, take_in)
    except OSError as error:
        raise OpsctlError(f"cannot look into {file_problem(error, folder)}") from None


def checkpoint_of(place: str) -> str | None:
    """The place of the checkpoint that a file is in; None for what is in none."""
    parts = place.split("/")[:-1]
    depth = next((number for number, name in enumerate(parts, start=1) if iteration_of(name) is not None), 0)
    return "/".join(parts[:depth]) or None
