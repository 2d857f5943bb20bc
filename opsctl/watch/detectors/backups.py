"""Is what [backup] wants elsewhere also there?"""

from __future__ import annotations

from datetime import timedelta

from opsctl.watch.detector import Detector, Settings
from opsctl.watch.finding import Finding, Severity
from opsctl.watch.seen import FarCopies
from opsctl.watch.snapshot import Part, Snapshot
from opsctl.watch.wording import length_words

CHECK = "backups"
HELP = """Is what `[backup]` wants elsewhere there, and is what was there still whole?

1: a checkpoint that is wanted there was saved more than two days ago and is not proven there; or a copy was found lost
or damaged there. 2: so was one whose checkpoint is no longer here, nor whole anywhere else.
"""
#: Backups are made every day: what has missed two of them has fallen behind.
OVERDUE = timedelta(days=2)


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A finding for each destination that has fallen behind, and one for each that has lost something."""
    return [one for copies in snapshot.copies for one in (*_lost(copies), *_behind(copies, snapshot))]


def _lost(copies: FarCopies) -> list[Finding]:
    if not copies.lost:
        return []
    first = min(copies.lost, key=lambda one: one.is_here or one.is_elsewhere)
    others = f" (and {len(copies.lost) - 1} more)" if len(copies.lost) > 1 else ""
    is_all = not (first.is_here or first.is_elsewhere)
    return [
        Finding(
            CHECK,
            Severity.CRITICAL if is_all else Severity.WARNING,
            f"the backup of {first.name} at {copies.to} no longer counts{others}",
            subject=f"{copies.to} lost",
            evidence=(first.why, *([f"{first.name} is nowhere else, as the ledger has it"] if is_all else [])),
            todo=(
                "opsctl checkpoints backup sends it again"
                if first.is_here
                else "look for another copy: opsctl backup list; opsctl backup verify reads again what is there"
            ),
        )
    ]


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


DETECTOR = Detector(CHECK, find, Part.BACKUPS, HELP)
