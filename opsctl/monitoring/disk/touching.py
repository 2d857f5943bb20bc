"""Making the caller's own files look used, so that they are not purged: only where a site lets people do that.

The time of the last reading is set, as a reading would; what was written last stays. No link is followed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.core.dirwalk.parallel import walk
from opsctl.core.dirwalk.sequential import Folder, Visitor, Walked, touched_at_s
from opsctl.core.errors import OpsctlError, file_problem

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass
class Touched:
    """What was touched, or would be."""

    files: int = 0
    size_bytes: int = 0
    others: int = 0  # files of others, who have to do so themselves
    problems: list[str] = field(default_factory=list)


@dataclass
class Touching(Visitor[Touched]):
    """A visitor that touches the caller's own files which nobody has touched since `before_s`."""

    before_s: float
    reads: bool = False  # by reading a byte, where a file system believes only that
    dry_run: bool = False
    done: Touched = field(default_factory=Touched)

    def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
        """One entry."""
        if not stat.S_ISREG(seen.st_mode) or touched_at_s(seen) >= self.before_s:
            return
        if seen.st_uid != os.geteuid():
            self.done.others += 1
            return
        try:
            if not self.dry_run:
                _touch(folder.fd, name, seen, self.reads)
        except OSError as error:
            self.done.problems.append(f"{folder.place}/{name}: {error.strerror}".lstrip("/"))
            return
        self.done.files, self.done.size_bytes = self.done.files + 1, self.done.size_bytes + seen.st_size

    def take(self) -> Touched:
        """What was done since this was asked last."""
        done, self.done = self.done, Touched()
        return done


def touch_all(folder: Path, touching: Touching, say: Callable[[int], None]) -> tuple[Touched, Walked]:
    """Walk through `folder` and touch what `touching` says. Raises OpsctlError where it cannot be opened."""
    done = Touched()

    def take_in(part: Touched) -> None:
        done.files, done.size_bytes = done.files + part.files, done.size_bytes + part.size_bytes
        done.others += part.others
        done.problems += part.problems[: 20 - len(done.problems)]
        say(done.files)

    try:
        return done, walk(folder, touching, take_in)
    except OSError as error:
        raise OpsctlError(f"cannot look into {file_problem(error, folder)}") from None


def _touch(within: int, name: str, seen: os.stat_result, reads: bool) -> None:
    fd = os.open(name, _FILE, dir_fd=within)
    try:
        now = os.fstat(fd)
        if not os.path.samestat(now, seen) or now.st_uid != os.geteuid():
            raise OSError(0, "something else took its place meanwhile")
        if reads:
            os.pread(fd, 1, 0)
        else:
            os.utime(fd, ns=(time.time_ns(), now.st_mtime_ns))
    finally:
        os.close(fd)
