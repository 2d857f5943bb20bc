"""Is the file system about to remove files of the run?"""

from __future__ import annotations

from datetime import timedelta

from opsctl.core.units import bytes_words
from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.quantities import length_words
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "purge"
HELP = """Is the file system about to remove files that nobody has read or written for `[watch] purge_days`?

1: it is. 2: within a day, or the latest checkpoint is among them.
"""
_SOON = timedelta(days=1)


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A finding about the files that go first."""
    purge = snapshot.purge
    if purge is None or not purge.files:
        return []
    left = purge.first_at - snapshot.now
    when = f"in {length_words(left)}" if left > timedelta() else "at any time"
    least = "" if purge.is_all else "at least "
    return [
        Finding(
            CHECK,
            Severity.CRITICAL if left < _SOON or purge.hits_latest else Severity.WARNING,
            f"{least}{purge.files} files of {purge.folder}, {bytes_words(purge.size_bytes)}, are about to be removed "
            f"by the file system, the first {when}",
            subject=purge.folder,
            evidence=(
                f"one of the latest checkpoint: {purge.example}"
                if purge.hits_latest
                else f"the first is {purge.example}",
                f"nobody has read or written them for nearly {settings.watch.purge_days} days"
                if settings.watch.purge_days
                else "nobody has read or written them for long",
            ),
            todo="copy what is needed to where nothing is removed; reading a file keeps it",
        )
    ]


DETECTOR = Detector(CHECK, find, Part.PURGE, HELP)
