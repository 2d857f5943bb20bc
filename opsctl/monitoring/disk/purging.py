"""Files that a file system will remove because they were not read or written for long."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.core.dirwalk.parallel import walk
from opsctl.core.dirwalk.sequential import Folder, Visitor, touched_at_s, under
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.monitoring.disk.json_output import PrintedDay, PrintedPurge
from trainer.formats.checkpoint.manifest import iteration_of


@dataclass(frozen=True)
class Going:
    """A file that is about to be removed."""

    place: str
    goes_at_s: float
    size_bytes: int


@dataclass
class Finding(Visitor[list[Going]]):
    """A visitor that finds files unused for so long that they are purged before `until_s`."""

    purge_after_s: float
    until_s: float
    found: list[Going] = field(default_factory=list)

    def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
        """One entry."""
        goes_at_s = max(0.0, touched_at_s(seen) + self.purge_after_s)  # some file systems keep any time at all
        if goes_at_s < self.until_s and stat.S_ISREG(seen.st_mode):
            self.found.append(Going(under(folder.place, name), goes_at_s, seen.st_size))

    def take(self) -> list[Going]:
        """Return what was found since the last call."""
        found, self.found = self.found, []
        return found


def find_purged(folder: Path, purge_after: timedelta, within: timedelta, now: datetime) -> PrintedPurge:
    """Walk through `folder` and return the files to be removed within that time. Raises OpsctlError."""
    days, checkpoints, everything = dict[str, PrintedDay](), dict[str, PrintedDay](), PrintedDay(name="")

    def take_in(going: list[Going]) -> None:
        for one in going:
            day = datetime.fromtimestamp(max(one.goes_at_s, now.timestamp()), UTC).astimezone().date().isoformat()
            sums = [everything, days.setdefault(day, PrintedDay(name=day))]
            if (checkpoint := checkpoint_of(one.place)) is not None:
                sums.append(checkpoints.setdefault(checkpoint, PrintedDay(name=checkpoint)))
            at = datetime.fromtimestamp(one.goes_at_s, UTC).astimezone()
            for each in sums:
                each.files, each.size_bytes = each.files + 1, each.size_bytes + one.size_bytes
                each.first_at = min(each.first_at or at, at)

    finding = Finding(purge_after.total_seconds(), (now + within).timestamp())
    try:
        walked = walk(folder, finding, take_in)
    except OSError as error:
        raise OpsctlError(f"cannot look into {file_problem(error, folder)}") from None
    return PrintedPurge(
        folder=str(folder),
        files=everything.files,
        size_bytes=everything.size_bytes,
        first_at=everything.first_at,
        days=[days[name] for name in sorted(days)],
        checkpoints=[checkpoints[name] for name in sorted(checkpoints)],
        unread=walked.unread_count,
        hanging=list(walked.hanging),
    )


def checkpoint_of(place: str) -> str | None:
    """Return the place of the checkpoint that a file is in; None if it is in none."""
    parts = place.split("/")[:-1]
    depth = next((number for number, name in enumerate(parts, start=1) if iteration_of(name) is not None), 0)
    return "/".join(parts[:depth]) or None
