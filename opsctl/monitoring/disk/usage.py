"""Who uses how much of a folder, by a walk that goes on from call to call, and how fast that grows.

What is known of a folder lies with the account that asks, whoever the folder belongs to: how far its walk has come,
what the last whole one found, and one line for each user and folder of earlier ones, thinned as they age.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from opsctl.core.account import account_name
from opsctl.core.dirwalk.parallel import Budget, walk
from opsctl.core.dirwalk.sequential import BEGINNING, Pending
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import make_folder, read_state, write_state
from opsctl.monitoring.disk.totals import Amounts, Counting
from opsctl.run.config.locate import account_state_folder
from opsctl.run.state.space import SpaceLine, append_looks, read_looks
from trainer.formats.json_text import Moment

USERS, FOLDERS = "user", "folder"
#: A walk that has gone on for longer than this begins anew: what it saw first is long past.
_STALE_AFTER = timedelta(days=7)
#: Growth is told over this time, and never over less than the other.
_GROWTH_OVER, _GROWTH_LEAST = timedelta(days=7), timedelta(minutes=30)
_DAY_S = 86400.0


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What a walk has counted, or a part of it: name -> bytes and entries."""

    began_at: Moment
    ended_at: Moment | None = None
    users: dict[str, tuple[int, int]] = {}
    folders: dict[str, tuple[int, int]] = {}
    entries: int = 0
    unread: int = 0  # folders that could not be looked into


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What this account knows of one folder."""

    folder: str
    whole: Counted | None = None
    begun: Counted | None = None
    pending: tuple[Pending, ...] = ()  # what `begun` does not have yet


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One user, or one folder of the folder."""

    name: str
    used_bytes: int
    used_inodes: int
    bytes_a_day: float | None = None  # None: nobody has counted before


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


def rows(counted: Counted, by: str, history: Sequence[SpaceLine]) -> list[Row]:
    """What is used by each user, or in each folder, what grows most first."""
    found = [
        Row(
            name=name,
            used_bytes=size,
            used_inodes=number,
            bytes_a_day=growth(size, counted.began_at, [one for one in history if one.name == f"{by} {name}"]),
        )
        for name, (size, number) in (counted.users if by == USERS else counted.folders).items()
    ]
    return sorted(found, key=lambda row: (-(row.bytes_a_day or 0.0), -row.used_bytes, row.name))


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
    """Keep it for the next call. Raises OpsctlError where that cannot be: it would begin anew each time."""
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
