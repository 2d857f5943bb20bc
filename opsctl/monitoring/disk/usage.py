"""Usage of a folder, by a walk with a time limit, and its growth.

Of each whole walk the account that asks keeps one line for each user and folder, thinned as they age.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from opsctl.core.account import account_name
from opsctl.core.dirwalk.parallel import Budget, walk
from opsctl.core.dirwalk.sequential import ITSELF, Folder, Visitor, share_of_bytes
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import make_folder
from opsctl.run.config.locate import account_state_folder
from opsctl.run.state.space import SpaceLine, append_looks, read_looks

#: What lies in the folder itself and not in one of its folders.
HERE = "."


@dataclass
class Amounts:
    """Bytes on the disk and entries: by uid, and by the first folder of the place."""

    users: dict[int, list[int]] = field(default_factory=dict)
    folders: dict[str, list[int]] = field(default_factory=dict)

    def add(self, other: Amounts) -> None:
        """Add what another part of the walk has found."""
        for uid, amount in other.users.items():
            _add(self.users.setdefault(uid, [0, 0]), *amount)
        for name, amount in other.folders.items():
            _add(self.folders.setdefault(name, [0, 0]), *amount)


@dataclass
class Counting(Visitor[Amounts]):
    """A visitor that adds up."""

    found: Amounts = field(default_factory=Amounts)
    _folder: Folder | None = None
    _of_folder: list[int] = field(default_factory=list)

    def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
        """Count this one; a folder of the root counts for itself."""
        size = share_of_bytes(seen)
        if not folder.place:
            is_folder = name != ITSELF and seen.st_mode & 0o170000 == 0o040000
            amount = self.found.folders.setdefault(name if is_folder else HERE, [0, 0])
        elif folder is self._folder:
            amount = self._of_folder
        else:
            amount = self.found.folders.setdefault(folder.place.partition("/")[0], [0, 0])
            self._folder, self._of_folder = folder, amount
        _add(amount, size, 1)
        _add(self.found.users.setdefault(seen.st_uid, [0, 0]), size, 1)

    def take(self) -> Amounts:
        """Return what was counted since the last call."""
        found, self.found, self._folder = self.found, Amounts(), None
        return found


def _add(amount: list[int], size_bytes: int, entries: int) -> None:
    amount[0] += size_bytes
    amount[1] += entries


USERS, FOLDERS = "user", "folder"
#: Growth is computed over the first time, and never over less than the second.
_GROWTH_OVER, _GROWTH_LEAST = timedelta(days=7), timedelta(minutes=30)
_DAY_S = 86400.0


@dataclass(frozen=True)
class Counted:
    """The counts of a walk: name -> bytes and entries."""

    folder: Path
    at: datetime
    users: dict[str, tuple[int, int]]
    folders: dict[str, tuple[int, int]]
    entries: int
    unread: int = 0  # folders that could not be looked into
    is_all: bool = True  # False: it ran out of time


def counted(
    folder: Path,
    time_s: float,
    now: datetime,
    say: Callable[[int], None] = lambda _: None,
    environment: Mapping[str, str] = os.environ,
) -> Counted:
    """Walk through `folder` for `time_s` seconds at most. Raises OpsctlError."""
    amounts, entries = Amounts(), 0

    def take_in(found: Amounts) -> None:
        nonlocal entries
        amounts.add(found)
        entries += sum(number for _, number in found.users.values())
        say(entries)

    try:
        walked = walk(folder, Counting(), take_in, Budget(time_s))
    except OSError as error:
        raise OpsctlError(f"cannot look into {file_problem(error, folder)}") from None
    users = {account_name(uid): (size, number) for uid, (size, number) in amounts.users.items()}
    folders = {name: (size, number) for name, (size, number) in amounts.folders.items()}
    found = Counted(folder, now, users, folders, entries, walked.unread_count, walked.is_done)
    if found.is_all:
        _remember(found, environment)
    return found


def growth(used: int, at: datetime, history: Sequence[SpaceLine]) -> float | None:
    """Bytes a day since the first look within a week; None where there is none before, or only just before."""
    earlier = [one for one in history if _GROWTH_LEAST <= at - one.at <= _GROWTH_OVER and one.used_bytes is not None]
    if not earlier:
        return None
    first = min(earlier, key=lambda one: one.at)
    return (used - (first.used_bytes or 0)) / (at - first.at).total_seconds() * _DAY_S


def read_history(folder: Path, environment: Mapping[str, str] = os.environ) -> list[SpaceLine]:
    """Earlier counts of this folder, oldest first; empty where they cannot be read."""
    root = account_state_folder(environment)
    try:
        return read_looks(root, _record_of(folder, root))
    except OSError:
        return []


def _remember(found: Counted, environment: Mapping[str, str]) -> None:
    """Keep the counts for the growth of later ones. Raises OpsctlError."""
    root = account_state_folder(environment)
    path = _record_of(found.folder, root)
    looks = [
        SpaceLine(name=f"{by} {name}", at=found.at, used_bytes=size, used_inodes=number, how="walk")
        for by, of in ((USERS, found.users), (FOLDERS, found.folders))
        for name, (size, number) in of.items()
    ]
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_folder(root, path.parent)
        append_looks(root, path, looks, found.at)
    except OSError as error:
        raise OpsctlError(f"cannot keep the counts: {file_problem(error, path)}") from None


def _record_of(folder: Path, root: Path) -> Path:
    digest = hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()
    return root / "disk" / f"{digest}.jsonl"
