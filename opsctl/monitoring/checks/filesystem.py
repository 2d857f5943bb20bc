"""Is there room for the checkpoints to come, in bytes and in files?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import takewhile

from opsctl.core.units import bytes_words, count_words
from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.observed import Space
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "filesystem"
HELP = """How full are the run's file systems and quotas, in bytes and in inodes?

1: fuller than `[watch] full_percent`. 2: half of what was left then is gone too. 3: one cannot be looked at. What was
above the limit stays a finding until it is two per cent below: a rotation of checkpoints is no recovery.
"""
#: What was too full within this time stays so until it is so many per cent below the limit.
REMEMBERED, STEADY_PERCENT = timedelta(days=1), 2.0


def fullness(space: Space) -> Iterator[tuple[str, float, str]]:
    """(what, share of the limit, in words) of bytes and of inodes, as far as they are told."""
    for kind, share, used, limit, words in (
        ("bytes", space.share, space.used_bytes, space.limit_bytes, bytes_words),
        ("inodes", space.inode_share, space.used_inodes, space.limit_inodes, count_words),
    ):
        if share is not None:
            amounts = f": {words(used)} of {words(limit)}" if used is not None and limit else ""
            yield kind, share, amounts


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A finding for each file system or quota that is too full, of bytes and of inodes; UNKNOWN for one not seen."""
    found = []
    for space in snapshot.spaces:
        if space.problem:
            words = f"how full {space.name} is cannot be seen: {space.problem}"
            found.append(Finding(CHECK, Severity.UNKNOWN, words, subject=space.name))
        found += [
            one
            for kind, share, words in fullness(space)
            if (one := _full(snapshot, settings, space, kind, share, words))
        ]
    return found


def _full(snapshot: Snapshot, settings: Settings, space: Space, kind: str, share: float, words: str) -> Finding | None:
    limit = settings.watch.full_percent
    was = _most_lately(snapshot, space.name, kind)
    bar = limit - STEADY_PERCENT if was >= limit else limit
    critical = limit + (100.0 - limit) / 2.0
    percent = 100.0 * share
    if percent < bar:
        return None
    critical_bar = critical - STEADY_PERCENT / 2 if was >= critical else critical
    source = f", by {space.how}" if space.how else ""
    return Finding(
        CHECK,
        Severity.CRITICAL if percent >= critical_bar else Severity.WARNING,
        f"{space.name} is {percent:.1f} % full of {kind}{words}",
        subject=f"{space.name} {kind}",
        evidence=(
            f"{percent:.1f} % of {kind}{source}; [watch] full_percent is {limit:g}",
            *((space.note,) if space.note else ()),
        ),
        todo="opsctl checkpoints list: which can go? Ask for more before it is full",
    )


def _most_lately(snapshot: Snapshot, name: str, kind: str) -> float:
    """How full it was at most within the last day, in per cent."""
    since = snapshot.now - REMEMBERED
    lately = takewhile(lambda one: one.at >= since, reversed(snapshot.space_history))
    told = (fullness(one) for one in lately if one.name == name)
    return max((100.0 * share for of_one in told for its_kind, share, _ in of_one if its_kind == kind), default=0.0)


DETECTOR = Detector(CHECK, find, Part.SPACE, HELP)
