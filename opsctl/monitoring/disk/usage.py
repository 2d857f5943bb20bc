"""Usage of a folder, by a walk that continues from call to call, and its growth.

What is known of a folder is stored for the account that asks: how far its walk has come, the last whole one, and one
line for each user and folder of earlier ones, thinned as they age.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from opsctl.core.account import account_name
from opsctl.core.dirwalk.parallel import Budget, walk
from opsctl.core.dirwalk.sequential import BEGINNING, ITSELF, Folder, Pending, Visitor, share_of_bytes
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import make_folder, read_state, write_state
from opsctl.run.config.locate import account_state_folder
from opsctl.run.state.space import SpaceLine, append_looks, read_looks
from trainer.formats.json_text import Moment

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
#: A walk that has gone on for longer than this starts again: what it saw first is long past.
_STALE_AFTER = timedelta(days=7)
#: Growth is computed over the first time, and never over less than the second.
_GROWTH_OVER, _GROWTH_LEAST = timedelta(days=7), timedelta(minutes=30)
_DAY_S = 86400.0


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a walk, or of a part of it: name -> bytes and entries."""

    began_at: Moment
    ended_at: Moment | None = None
    users: dict[str, tuple[int, int]] = {}
    folders: dict[str, tuple[int, int]] = {}
    entries: int = 0
    unread: int = 0  # folders that could not be looked into


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The records of this account about one folder."""

    folder: str
    whole: Counted | None = None
    begun: Counted | None = None
    pending: tuple[Pending, ...] = ()  # what `begun` does not have yet


def gone_on(
    folder: Path,
    time_s: float,
    now: datetime,
    say: Callable[[int], None] = lambda _: None,
    environment: Mapping[str, str] = os.environ,
) -> Known:
    """Walk on through `folder` for `time_s` seconds, and what is known then. Raises OpsctlError."""
    root = account_state_folder(environment)
    path = _record_of(folder, root, ".json")
    known = read_state(root, path, Known) or Known(folder=str(folder))
    begun, pending = known.begun, known.pending
    if begun is None or not pending or not timedelta(0) <= now - begun.began_at < _STALE_AFTER:
        begun, pending = Counted(began_at=now), BEGINNING
    amounts, entries = Amounts(), [begun.entries]

    def take_in(found: Amounts) -> None:
        amounts.add(found)
        entries[0] += sum(number for _, number in found.users.values())
        say(entries[0])

    try:
        walked = walk(folder, Counting(), take_in, Budget(time_s), pending)
    except OSError as error:
        raise OpsctlError(f"cannot look into {file_problem(error, folder)}") from None
    users = {account_name(uid): (size, number) for uid, (size, number) in amounts.users.items()}
    folders = {name: (size, number) for name, (size, number) in amounts.folders.items()}
    begun = msgspec.structs.replace(
        begun,
        ended_at=now,
        users=_sum(begun.users, users),
        folders=_sum(begun.folders, folders),
        entries=entries[0],
        unread=begun.unread + walked.unread_count,
    )
    known = msgspec.structs.replace(known, begun=begun, pending=walked.pending)
    if walked.is_done:
        known = Known(folder=str(folder), whole=begun)
    _remember(root, path, folder, known, now)
    return known


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
        return read_looks(root, _record_of(folder, root, ".jsonl"))
    except OSError:
        return []


def _remember(root: Path, path: Path, folder: Path, known: Known, now: datetime) -> None:
    """Keep it for the next call. Raises OpsctlError where that cannot be: it would start again each time."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_folder(root, path.parent)
        write_state(root, path, known)
        if not known.pending and known.whole is not None:
            at, whole = known.whole.began_at, known.whole
            looks = [
                SpaceLine(name=f"{by} {name}", at=at, used_bytes=size, used_inodes=number, how="walk")
                for by, of in ((USERS, whole.users), (FOLDERS, whole.folders))
                for name, (size, number) in of.items()
            ]
            append_looks(root, _record_of(folder, root, ".jsonl"), looks, now)
    except OSError as error:
        raise OpsctlError(f"cannot keep how far the walk has come: {file_problem(error, path)}") from None


def _record_of(folder: Path, root: Path, suffix: str) -> Path:
    digest = hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()
    return root / "disk" / f"{digest}{suffix}"


def _sum(one: Mapping[str, tuple[int, int]], other: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    none = (0, 0)
    pairs = {name: (one.get(name, none), other.get(name, none)) for name in {**one, **other}}
    return {name: (here[0] + there[0], here[1] + there[1]) for name, (here, there) in pairs.items()}
