"""Is what [backup] wants elsewhere also there?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.observed import FarCopies, LostCopy
from opsctl.monitoring.quantities import length_words
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "backups"
HELP = """Is what `[backup]` wants elsewhere there, and is what was there still whole?

1: a checkpoint that is wanted there was saved more than two days ago and is not proven there; or a copy was found lost
or damaged there; or the data sets are wanted there since more than two days and were never proven there, or were found
lost. 2: so was what is no longer here, nor whole anywhere else.
"""
#: Backups are made every day: what has missed two of them has fallen behind.
OVERDUE = timedelta(days=2)


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A finding for each destination that has fallen behind, and one for each that has lost something."""
    return [
        one
        for copies in snapshot.copies
        for one in (*_at(copies), *_behind(copies, snapshot), *_data_behind(copies, snapshot))
    ]


def _at(copies: FarCopies) -> Iterator[Finding]:
    """What is lost there: of checkpoints, of which one stands for all, and of data sets."""
    if copies.lost:
        first = min(copies.lost, key=lambda one: one.is_here or one.is_elsewhere)
        others = f" (and {len(copies.lost) - 1} more)" if len(copies.lost) > 1 else ""
        yield _lost(first, others, copies.to, "lost", "opsctl checkpoints backup sends it again")
    if copies.data_lost is not None:
        yield _lost(copies.data_lost, "", copies.to, "data lost", "opsctl backup --data sends them again")


def _lost(one: LostCopy, others: str, to: str, subject: str, remedy: str) -> Finding:
    is_all = not (one.is_here or one.is_elsewhere)
    return Finding(
        CHECK,
        Severity.CRITICAL if is_all else Severity.WARNING,
        f"the backup of {one.name} at {to} no longer counts{others}",
        subject=f"{to} {subject}",
        evidence=(one.why, *([f"{one.name}: whole nowhere else, as the ledger has it"] if is_all else [])),
        todo=(
            remedy
            if one.is_here
            else "look for another copy: opsctl backup list; opsctl backup verify reads again what is there"
        ),
    )


def _behind(copies: FarCopies, snapshot: Snapshot) -> list[Finding]:
    late = [one for one in copies.overdue if snapshot.now - one.saved_at > OVERDUE]
    if not late:
        return []
    first = min(late, key=lambda one: one.saved_at)
    others = f" and {len(late) - 1} more" if len(late) > 1 else ""
    return [
        Finding(
            CHECK,
            Severity.WARNING,
            f"{first.name}{others} should be backed up at {copies.to} and {'are' if others else 'is'} not",
            subject=copies.to,
            since=first.saved_at,
            evidence=(f"{first.name} was saved {length_words(snapshot.now - first.saved_at)} ago",),
            todo="opsctl checkpoints backup says why; opsctl cron status shows whether checkpoint-backup runs",
        )
    ]


def _data_behind(copies: FarCopies, snapshot: Snapshot) -> list[Finding]:
    since = copies.data_wanted_since
    if since is None or snapshot.now - since <= OVERDUE:
        return []
    return [
        Finding(
            CHECK,
            Severity.WARNING,
            f"the data sets should be backed up at {copies.to} and are not",
            subject=f"{copies.to} data",
            since=since,
            evidence=(f"the revision that wants them there was published {length_words(snapshot.now - since)} ago",),
            todo="what it says: opsctl backup; opsctl cron status shows whether checkpoint-backup runs",
        )
    ]


DETECTOR = Detector(CHECK, find, Part.BACKUPS, HELP)
